"""The command `watch`: judges a running pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onceproof.cli.options import EXIT_CODES
from onceproof.cli.output import failing_well

if TYPE_CHECKING:
    from onceproof.watch.session import Options

commands = typer.Typer()


@commands.command(epilog=EXIT_CODES, rich_help_panel="Run and judge")
def watch(
    scenario: Annotated[
        Path,
        typer.Argument(
            metavar="SCENARIO",
            help="A scenario; input topics, outputs, oracle and claim are enough.",
            show_default=False,
        ),
    ],
    kafka: Annotated[str, typer.Option(metavar="ADDRESS", help="The Kafka that the pipeline uses.")],
    window: Annotated[str, typer.Option(metavar="TIME", help="Close a window of the input after this time.")] = "5s",
    grace: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="How long after that its last row may become readable: more than a batch and its commit take.",
        ),
    ] = "5s",
    lead_in: Annotated[
        str,
        typer.Option(
            "--lead-in",
            metavar="TIME",
            help="Read the input of this time before the start too: more than the pipeline may lag behind.",
        ),
    ] = "60s",
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="End after this time (default: at Ctrl-C).", show_default=False),
    ] = None,
    remember: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="How long settled rows are remembered, 24 bytes on disk per row: one that comes again later is called unexplained.",
        ),
    ] = "10m",
    metrics: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="Serve metrics for Prometheus on 127.0.0.1; 0: any free port.",
            min=0,
            max=65535,
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line on stdout, the verdict last.")
    ] = False,
) -> None:
    """Judge a pipeline while it runs, and name lost, repeated and wrong rows within seconds.

    It reads the input and output topics of your Kafka from now on, and compares
    what the oracle expects of each few seconds of input with what the pipeline
    has written. It joins no consumer group and writes nothing to your systems.

    Every row must follow from one input record: an oracle identity, or sql with
    one SELECT over one topic, with _partition and _offset. Outputs are topics of
    kind append. For all others: `onceproof import`, then `onceproof check`.

    Ctrl-C ends it with a verdict on all that was judged; a second one at once.

    \b
    onceproof watch orders.yaml --kafka broker:9092
    onceproof watch orders.yaml --kafka broker:9092 --grace 30s --metrics 9464
    onceproof watch orders.yaml --kafka broker:9092 --for 10m --json
    """
    with failing_well(as_json) as output:
        from onceproof.base import signals
        from onceproof.cli.watch.lines import Printer, print_verdict
        from onceproof.scenario_files.load import load_to_judge
        from onceproof.watch.per_record import refuse_unwatchable
        from onceproof.watch.session import Watch

        loaded = load_to_judge(scenario)
        refuse_unwatchable(loaded)
        options = _options(kafka, window, grace, lead_in, for_, remember, metrics)
        verdict = Watch(loaded, options, Printer(output)).run()
        signals.taken()
        print_verdict(verdict, output)
        raise typer.Exit(verdict.outcome.exit_code)


def _options(
    kafka: str, window: str, grace: str, lead_in: str, for_: str | None, remember: str, metrics: int | None
) -> Options:
    from onceproof.base.duration import any_seconds
    from onceproof.base.errors import UsageError
    from onceproof.watch.session import Options

    window_s, grace_s = any_seconds(window, "--window"), any_seconds(grace, "--grace")
    if window_s < 1:
        raise UsageError(
            f"--window {window} is too short: judging a window takes up to a second", hint="give 1s or more"
        )
    if grace_s > 4 * window_s:
        hint = f"give --window {grace_s / 4:g}s or more"
        why = "each record would be compared with more than five windows"
        raise UsageError(f"--grace {grace} is more than four times --window {window}: {why}", hint=hint)
    return Options(
        kafka,
        window_s,
        grace_s,
        any_seconds(lead_in, "--lead-in"),
        None if for_ is None else any_seconds(for_, "--for"),
        any_seconds(remember, "--remember"),
        metrics,
    )
