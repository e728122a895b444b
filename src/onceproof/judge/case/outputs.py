"""What is known of one output while its run is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class OutputExpectation:
    """What the oracle's rows for one output have, and what of them is compared."""

    columns: dict[str, str]
    """Compared column -> DuckDB type."""
    whole: bool
    """Every column of the output is compared or ignored; else only these."""
    has_cause: bool
    has_key: bool
    has_place: bool = False
    """The oracle says which partition of the output an effect belongs in."""


@dataclass(frozen=True)
class Reading:
    """How the values of an output are read (`onceproof.values.documents`)."""

    exact: bool = False
    """All of them in Python: names that differ only by case or stand twice, or texts where numbers are expected."""
    long_numbers: bool = False
    """Those with numbers that are no doubles in Python."""
    members: Mapping[str, str] = field(default_factory=dict)
    """Column -> name, where these differ."""
