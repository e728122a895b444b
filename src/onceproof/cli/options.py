"""What several commands share: exit codes, the kinds of lists, and common options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXIT_CODES = (
    "Exit codes: 0 held (run --all: every expectation met), 1 violated, 2 wrong usage or scenario, "
    "3 inconclusive, 4 error of onceproof or its environment, 130 interrupted. "
    "Of several scenarios the worst counts: violated, error, inconclusive, held."
)


#: What ``list`` can list.
LISTS = ("scenarios", "faults", "points", "checkers", "oracles", "datasets", "stores", "reports", "decoders")

WhatToList = Annotated[str, typer.Argument(metavar="WHAT", help=f"What to list: {', '.join(LISTS)}.")]
ItemToList = Annotated[
    str | None, typer.Argument(help="A fault, oracle, data set or store: list its fields.", show_default=False)
]
ListBy = Annotated[
    str | None,
    typer.Option(
        "--by",
        metavar="row",
        help="The scenarios by what they show: each phenomenon with its naive scenarios, its remedies, and what is missing.",
        show_default=False,
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and messages on stderr.")]
Reports = Annotated[
    list[str] | None,
    typer.Option(
        "--report",
        metavar="NAME[=FILE]",
        help="Also write this report (`onceproof list reports`) to a file; may be repeated. "
        "Without a file it goes to stdout, and messages to stderr.",
    ),
]
Junit = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write the results as JUnit XML to this file.", dir_okay=False)
]
Ci = Annotated[
    bool,
    typer.Option(
        "--ci", help="Also report to the CI server: summary and annotations on GitHub, code quality report on GitLab."
    ),
]
Name = Annotated[
    str,
    typer.Argument(metavar="SCENARIO", help="Name of a shipped scenario, or path of a YAML file.", show_default=False),
]

Stack = Annotated[
    str | None,
    typer.Option(
        "--stack",
        metavar="NAME",
        help="compose: Kafka and Postgres in containers. Any other name: a stack described in onceproof.toml.",
        show_default=False,
    ),
]

FreshStack = Annotated[
    bool,
    typer.Option("--fresh-stack", help="Start new services for each run, instead of cleaning and reusing them."),
]

Tier = Annotated[
    str,
    typer.Option(
        "--tier",
        metavar="TIER",
        help="How the driver is killed and restarted. real: with its JVM. kept: its JVM is used again, faster, for screening.",
    ),
]

RunsDir = Annotated[
    Path, typer.Option("--runs", metavar="DIR", help="Folder in which to create run directories.", file_okay=False)
]
RunsToRead = Annotated[
    Path,
    typer.Option(
        "--runs", metavar="DIR", help="With --by: the folder of runs whose last result of each scenario is printed."
    ),
]
DEFAULT_RUNS = Path("onceproof-runs")
Seed = Annotated[int | None, typer.Option(help="Seed of generated input (default: the scenario's).")]

Resolved = Annotated[
    bool, typer.Option("--resolved", help="Print the scenario as one YAML text, with its bases merged in.")
]
