"""What the judge knows about one output while it judges a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class OutputExpectation:
    """Which columns the oracle gives for one output, and which of them are compared."""

    columns: dict[str, str]
    """Compared column -> DuckDB type."""
    whole: bool
    """Every column of the output must be compared or ignored. If False, only `columns` are."""
    has_cause: bool
    has_key: bool
    has_place: bool = False
    """The oracle says to which partition of the output an effect belongs."""


@dataclass(frozen=True)
class Reading:
    """How the values of an output are read (`onceproof.values.documents`)."""

    exact: bool = False
    """Read all values in Python: some names differ only by case or occur twice, or strings are where numbers should be."""
    long_numbers: bool = False
    """Read in Python the values with numbers that a double cannot hold."""
    canonical: frozenset[str] = frozenset()
    """Columns whose texts are canonical as they are written: short whole numbers."""
    members: Mapping[str, str] = field(default_factory=dict)
    """Column -> name of the member, where these differ."""
