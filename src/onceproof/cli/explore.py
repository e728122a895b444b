"""The command `explore`: prints its progress and the matrix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from onceproof.cli.options import EXIT_CODES, Json
from onceproof.cli.output import failing_well

commands = typer.Typer()


@commands.command(epilog=EXIT_CODES, rich_help_panel="Run and judge")
def explore(
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO", help="Name of a shipped scenario, or path of a YAML file.", show_default=False
        ),
    ] = None,
    singles: Annotated[bool, typer.Option("--singles", help="Each fault alone (the default).")] = False,
    pairs: Annotated[bool, typer.Option("--pairs", help="Each fault alone, and all ordered pairs.")] = False,
    random: Annotated[
        int | None,
        typer.Option("--random", min=1, max=100_000, help="So many random schedules of up to five faults."),
    ] = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time limit of this command: 90s, 10m, 1h30m.")] = "10m",
    go_on: Annotated[
        Path | None, typer.Option("--continue", metavar="DIR", help="Continue the exploration of this directory.")
    ] = None,
    tier: Annotated[str, typer.Option(help="auto: the fastest that the job allows; real: only real kills.")] = "auto",
    rows: Annotated[int, typer.Option(min=1, max=100_000, help="Input records of each batch, at most.")] = 30,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the matrix as Markdown, too.", dir_okay=False)
    ] = None,
    as_json: Json = False,
    runs: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder in which to create the directory.", file_okay=False)
    ] = Path("onceproof-runs"),
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed by which random schedules are drawn, and those that are repeated (default: the scenario's)."
        ),
    ] = None,
) -> None:
    """Try crashes of a job's driver at all points of its first three batches.

    A pipeline given as a Python function (pipeline.callable) is executed about
    a hundred times a minute, in one Spark session; its violations, and a
    sample of the rest, are repeated with real kills. Any other job is run with
    real kills each time. The scenario's own faults are not used.

    Exit code 1 if a violation is confirmed or the run without faults is
    violated, 0 if every schedule held and real kills agree, else 3.

    \b
    onceproof explore my_function.yaml --pairs
    onceproof explore my_function.yaml --random 500 --seed 7 --budget 30m
    onceproof explore --continue onceproof-runs/explore-my_function-...
    """
    with failing_well(as_json) as output:
        from onceproof.api.exploration import Wanted
        from onceproof.api.exploration import explore as begin
        from onceproof.cli.output import Output, write_file
        from onceproof.explore import matrix
        from onceproof.explore.console import ProgressOnConsole

        wanted = Wanted.of(singles=singles, pairs=pairs, random=random, seed=seed, rows=rows, tier=tier)
        with ProgressOnConsole(Output(as_json=True).console(), str(scenario or go_on)) as progress:
            result = begin(scenario, wanted, go_on=go_on, budget=budget, runs_dir=runs, listener=progress)
        output.say(matrix.as_text(result))
        if markdown is not None:
            write_file(markdown, matrix.as_markdown(result))
        if output.as_json:
            output.result(json.dumps(matrix.as_json(result), default=str))
        raise typer.Exit(result.outcome().exit_code)
