"""The command `sinks progress`: shows the recorded progress of pipelines, and repairs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onceproof.cli.options import Json
from onceproof.cli.output import failing_well

_EXIT_CODES = "Exit codes: 0 shown or written, 2 wrong usage, 4 a service cannot be read or written, 130 interrupted."

commands = typer.Typer(no_args_is_help=True)


@commands.callback()
def sinks() -> None:
    """What the sinks of `onceproof.sinks` have recorded."""


@commands.command(epilog=_EXIT_CODES)
def progress(
    postgres_env: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="Progress in this Postgres; the environment variable holds its URI."),
    ] = None,
    table: Annotated[
        str, typer.Option(metavar="NAME", help="The sink's progress_table, with its schema if that is not public.")
    ] = "onceproof_progress",
    kafka: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Progress in this Kafka.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="NAME", help="The sink's progress_topic.")] = None,
    kafka_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Settings of librdkafka, such as a login: lines of NAME=VALUE.", dir_okay=False
        ),
    ] = None,
    pipeline: Annotated[str | None, typer.Option(metavar="NAME", help="Only this pipeline (default: all).")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="What to record: TOPIC/PARTITION=OFFSET, batch=NUMBER or query=ID; may be repeated.",
        ),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write what --set names. Without it, nothing is written.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the recorded progress of pipelines, or repair it.

    Progress is the last batch, the query id of its checkpoint, and for each
    partition of the input the offset before which everything is written.

    --set shows what would change and what follows from it; --apply writes it.
    Stop the pipeline before: of a driver that runs nevertheless, the next batch
    fails. An offset that is set back lets rows be written again; one that is
    set forward lets records be skipped.

    \b
    onceproof sinks progress --postgres-env DATABASE_URL
    onceproof sinks progress --kafka broker:9092 --topic departures-progress
    onceproof sinks progress --postgres-env DATABASE_URL --pipeline departures --set batch=12 --set flights/0=1700
    """
    with failing_well(as_json) as output:
        from onceproof.cli.sinks.progress import Stores, show_or_change

        stores = Stores(postgres_env, table, kafka, topic, kafka_config)
        output.result(show_or_change(stores, pipeline, change or [], apply=apply, as_json=as_json))
