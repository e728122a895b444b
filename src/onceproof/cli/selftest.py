"""The command `selftest`: runs the planted bugs, prints the table, and stores the results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from onceproof.cli.options import Json, RunsDir
from onceproof.cli.output import Output, failing_well

commands = typer.Typer()


@commands.command(rich_help_panel="This machine")
def selftest(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Planted bugs to run (default: all).", show_default=False),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the planted bugs, and run none.")] = False,
    times: Annotated[
        int | None,
        typer.Option(
            "--times",
            min=0,
            help="How often to run each bug (default: 1, with --full 3; 0: only the controls of --full).",
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Also run each bug without its fault, and its remedy under the same faults.")
    ] = False,
    store: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Merge the results into this JSON file.", dir_okay=False)
    ] = None,
    as_json: Json = False,
    runs: RunsDir = Path("onceproof-runs"),
) -> None:
    """Check onceproof itself: it must catch bugs that were planted on purpose.

    Each planted bug is a sink, a job or a setting as people write it. It names
    beforehand the anomaly, the batch and the fault that must show it. With
    --full no bug may show without its fault, and the remedy must hold under it.

    Exit code 0 if everything is as named, 1 if not.

    \b
    onceproof selftest --list
    onceproof selftest naive-append check-without-lock
    onceproof selftest --full
    """
    with failing_well(as_json) as output:
        if listed:
            output.result(_list(names or [], output))
            return
        count = (3 if full else 1) if times is None else times
        raise typer.Exit(_run(names or [], count, full, store, runs, output))


def _list(names: list[str], output: Output) -> str:
    from onceproof.planted import catalogue, table

    bugs = catalogue.chosen(catalogue.read(), names)
    return json.dumps([bug.model_dump() for bug in bugs]) if output.as_json else table.listing(bugs, output.look())


def _run(names: list[str], times: int, full: bool, store: Path | None, runs_dir: Path, output: Output) -> int:
    from onceproof.api import runs
    from onceproof.api.runs import Run
    from onceproof.base.errors import UsageError
    from onceproof.history.run_directory import private_files
    from onceproof.planted import catalogue, results, session, table
    from onceproof.planted.results import BugResult
    from onceproof.reports.progress import Progress
    from onceproof.scenario_files.load import LoadedScenario

    if times == 0 and not full:
        raise UsageError("--times 0 runs nothing", hint="with --full it runs the controls only")
    bugs = catalogue.read()
    planted = catalogue.load(catalogue.chosen(bugs, names))
    if store is not None:
        results.read(store)  # fail now if it holds something else
    with private_files():
        folder = session.create_folder(runs_dir)

        def execute(loaded: LoadedScenario, what: str) -> Run:
            output.say(f"selftest: {what}")
            with Progress(output.console(), what, loaded.scenario.limits.deadline_s) as progress:
                return runs.run(loaded, runs_dir=folder, listeners=[progress])

        def report(name: str, result: BugResult) -> None:
            output.say(table.line(name, result))
            if store is not None:
                results.store(store, {name: result})

        found = session.Session(folder, execute, times=times, full=full, report=report).work(planted)
    output.say(table.as_text(bugs, found, output.look(log_width=140)), styled=True)
    output.say(f"results: {folder / results.FILE}")
    if output.as_json:
        output.result(results.as_text(found))
    return 0 if all(result.passed for result in found.values()) else 1
