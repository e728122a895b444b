"""What several commands share: exit codes, kinds of lists, and options that mean the same everywhere."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

EXIT_CODES = (
    "Exit codes: 0 held (run --all: every expectation met), 1 violated, 2 wrong usage or scenario, "
    "3 inconclusive, 4 harness or environment error, 130 interrupted. "
    "Over several scenarios the worst wins: violated, error, inconclusive, held."
)


class Listing(StrEnum):
    """What ``list`` can list."""

    SCENARIOS = "scenarios"
    FAULTS = "faults"
    POINTS = "points"
    CHECKERS = "checkers"
    ORACLES = "oracles"
    DATASETS = "datasets"
    STORES = "stores"
    REPORTS = "reports"


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; people read stderr.")]
Name = Annotated[
    str,
    typer.Argument(metavar="SCENARIO", help="Name of a shipped scenario, or path of a YAML file.", show_default=False),
]

Resolved = Annotated[
    bool, typer.Option("--resolved", help="Print the whole scenario as YAML, with its bases merged in.")
]
