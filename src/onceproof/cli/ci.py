"""The command for CI servers: `gate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onceproof.cli.options import Ci, FreshStack, Json, Junit, RunsDir
from onceproof.cli.output import failing_well

commands = typer.Typer()


@commands.command(rich_help_panel="Run and judge")
def gate(
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Start no run that would end later: 90s, 10m, 1h30m.")
    ] = "10m",
    update: Annotated[
        bool,
        typer.Option(
            "--update",
            help="Write the baseline if every scenario passes within the budget, instead of comparing with it.",
        ),
    ] = False,
    settings: Annotated[
        Path, typer.Option(metavar="FILE", help="The file with the table `gate`.", dir_okay=False)
    ] = Path("onceproof.toml"),
    as_json: Json = False,
    junit: Junit = None,
    ci: Ci = False,
    runs: RunsDir = Path("onceproof-runs"),
    fresh_stack: FreshStack = False,
) -> None:
    """Run the scenarios that onceproof.toml lists, and compare with a baseline.

    Runs first what failed the last time, then what is known to be bad, then
    the shortest. The baseline is a file to commit: it says which faults hit
    and what was compared when the gate last passed.

    Exit code 0 if every scenario has the expected verdict and covers as much
    as before; 1 for a regression, a known-bad scenario that is not caught, or
    less coverage; 2 for wrong settings or a missing baseline; 3 if a run is
    inconclusive or was not started; 4 if a run failed; 130 if interrupted.

    \b
    onceproof gate --update      once, then commit onceproof-gate.json
    onceproof gate --budget 10m
    """
    with failing_well(as_json) as output:
        from onceproof.cli.gate import gate as begin

        raise typer.Exit(
            begin(
                settings,
                budget=budget,
                update=update,
                runs_dir=runs,
                ci=ci,
                output=output,
                junit_file=junit,
                fresh_stack=fresh_stack,
            )
        )
