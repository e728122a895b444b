"""The commands to follow up a run: `propose`, `explain`, `report`, `replay`, `shrink`, `picture`; for this machine: `doctor`, `cleanup`; `schema`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from onceproof.cli.options import EXIT_CODES, FreshStack, Json
from onceproof.cli.output import failing_well

#: Groups of commands in --help.
_WRITE, _UNDERSTAND, _MACHINE = "Write a scenario", "Understand a finding", "This machine"

commands = typer.Typer()


@commands.command(rich_help_panel=_WRITE)
def propose(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run directories of two or more fault-free runs of one scenario."),
    ],
    as_json: Json = False,
) -> None:
    """Propose columns to ignore, by comparing runs without faults.

    A column that differs between fault-free runs cannot show the effect of a
    fault.

    \b
    onceproof propose onceproof-runs/my-job-1 onceproof-runs/my-job-2
    """
    with failing_well(as_json) as output:
        from onceproof.judge import proposals

        found = proposals.propose(runs)
        output.result(proposals.as_json(found) if as_json else proposals.as_text(found, len(runs)))


@commands.command(rich_help_panel=_UNDERSTAND)
def explain(
    anomaly: Annotated[
        str | None,
        typer.Argument(metavar="ANOMALY", help="Name of an anomaly (default: list all).", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain an anomaly, or list all anomalies.

    Says what the anomaly means, how it comes about, how it is detected, and
    what prevents it.

    \b
    onceproof explain
    onceproof explain torn-batch
    """
    with failing_well(as_json) as output:
        from onceproof.cli.show.anomaly import explained

        output.result(explained(anomaly, as_json))


@commands.command(rich_help_panel=_UNDERSTAND)
def report(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|QUALIFICATION",
            help="A directory of a run or of a qualification; with --compare two of a kind, the old one first; with --merge several runs.",
        ),
    ],
    compare: Annotated[bool, typer.Option("--compare", help="Compare two: what is new, gone and changed.")] = False,
    merge: Annotated[bool, typer.Option("--merge", help="One page about several runs.")] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write this file (default: report.html in RUN, comparison.html in NEW, merged.html in the first RUN).",
            dir_okay=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a page for the browser: verdict, timeline, findings, evidence.

    One file that works offline. Each run writes one by itself; this writes it
    again, also for a run that was interrupted, or that comes from elsewhere.

    \b
    onceproof report onceproof-runs/latest --open
    onceproof report --compare onceproof-runs/monday onceproof-runs/tuesday
    onceproof report onceproof-runs/a --merge onceproof-runs/b onceproof-runs/c --to all.html
    """
    with failing_well(as_json) as output:
        from onceproof.cli.report import report as write

        write(directories, compare=compare, merge=merge, to=to, show=show, output=output)


@commands.command(epilog=EXIT_CODES, rich_help_panel=_UNDERSTAND)
def replay(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    times: Annotated[int, typer.Option(min=1, max=10_000, help="How many replays.")] = 10,
    as_json: Json = False,
    fresh_stack: FreshStack = False,
) -> None:
    """Repeat a run's schedule, and count how often its findings come back.

    Services stay up and are cleaned between replays. A replay of consumers
    takes seconds; one of a Spark job as long as its run without its services.

    Exit code 0 if every replay had the same findings, else 3. Replays that
    differ are kept in RUN/replays.

    \b
    onceproof replay onceproof-runs/latest --times 100
    """
    with failing_well(as_json) as output:
        from onceproof.cli.run import replay_run

        raise typer.Exit(replay_run(directory, times, output, fresh_stack=fresh_stack))


@commands.command(epilog=EXIT_CODES, rich_help_panel=_UNDERSTAND)
def shrink(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory of a violated run.")],
    anomaly: Annotated[
        str | None, typer.Option(metavar="NAME", help="The anomaly that must stay (default: all that the run has).")
    ] = None,
    executions: Annotated[int, typer.Option(min=3, max=10_000, help="Execute at most this many schedules.")] = 60,
    as_json: Json = False,
    fresh_stack: FreshStack = False,
) -> None:
    """Find the smallest schedule that still shows a run's findings.

    Removes messages, consumers and faults, or, for a Spark job, faults, chunks
    of input and records of each chunk, as long as the anomalies stay.

    Writes the minimal scenario, and a run of it, to RUN/shrunk. Exit code 0 if
    it is proved that nothing more can be removed, else 3. Ctrl-C ends the
    search and keeps the smallest schedule found so far.

    \b
    onceproof shrink onceproof-runs/latest
    """
    with failing_well(as_json) as output:
        from onceproof.cli.run import shrink_run

        raise typer.Exit(shrink_run(directory, anomaly, executions, output, fresh_stack=fresh_stack))


@commands.command(rich_help_panel=_UNDERSTAND)
def picture(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory of a scenario with consumers.")],
) -> None:
    """Draw which consumer had which message when.

    Prints the picture as text, and writes picture.svg to the run directory.

    \b
    onceproof picture onceproof-runs/latest
    """
    with failing_well() as output:
        from onceproof.cli.run import draw_run

        output.result(draw_run(directory))


@commands.command(rich_help_panel=_MACHINE)
def doctor(
    as_json: Json = False,
    cache_key: Annotated[
        bool, typer.Option("--cache-key", help="Only print a key for a CI server's cache of the fetched components.")
    ] = False,
) -> None:
    """List what is installed, what is missing, and how to fix it.

    Exit code 4 if anything that a run needs is missing.
    """
    with failing_well(as_json) as output:
        if cache_key:
            from onceproof.stack.fetch.components import cache_key as key

            output.result(json.dumps({"cache_key": key()}) if as_json else key())
            return
        from onceproof.cli.show.machine import examined

        text, healthy = examined(as_json)
        output.result(text)
        raise typer.Exit(0 if healthy else 4)


@commands.command(rich_help_panel=_MACHINE)
def cleanup(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")] = False,
    as_json: Json = False,
    stack: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Remove what killed runs left on this stack (of onceproof.toml, or compose), and nothing on this machine.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Remove what a killed onceproof left behind.

    Ends its processes and removes its files on this machine. With --stack,
    removes its topics, schemas and replication slots there instead: run it
    without --stack first, because a job that still runs uses them. Runs in
    progress are not touched.
    """
    with failing_well(as_json) as output:
        from onceproof.cli.show.machine import cleaned

        output.result(cleaned(dry_run, as_json, stack))


@commands.command("schema", rich_help_panel=_WRITE)
def schema_() -> None:
    """Print the JSON Schema of scenario files, for your editor.

    \b
    onceproof schema > onceproof.schema.json
    """
    with failing_well() as output:
        from onceproof.scenario_files.schema import schema_text

        output.result(schema_text())
