"""How much of a run its page shows. The page is rendered with the first of `SIZES` with which it is small enough."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")

#: The page has at most so many bytes, whatever the run is.
MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class Limits:
    """The most that a page shows of each thing."""

    findings: int = 40
    witnesses: int = 12
    """Of one finding."""
    columns: int = 40
    """Of one row."""
    rows: int = 4
    """Of one witness, on each side."""
    cell: int = 240
    """Characters of one value."""
    text: int = 4_000
    """Characters of any text."""
    items: int = 100
    """Reasons, faults, batches and entries of each other list."""
    events: int = 400
    excerpts: int = 60
    """Of logs. Events beyond them link to the whole log."""
    lanes: int = 24
    bars: int = 300
    """Batches that are drawn. Of more batches, those that were replayed come first, and the others evenly from the whole run."""
    ticks: int = 200
    """Of one lane, evenly from the whole run."""
    drawings: bool = True
    """Whether there are a timeline, plots and the picture of the message flow."""


#: From large to small. The last one is small enough for any run: it has few texts, and each of them is short.
SIZES = (
    Limits(),
    Limits(witnesses=6, cell=120, text=2_000),
    Limits(witnesses=3, columns=20, rows=2, cell=80, text=1_000, items=50, excerpts=30, ticks=100, bars=150),
    Limits(
        30, 2, columns=10, rows=2, cell=60, text=500, items=30, events=200, excerpts=15, lanes=12, bars=100, ticks=50
    ),
    Limits(20, 1, columns=8, rows=2, cell=40, text=200, items=20, events=100, excerpts=5, drawings=False),
    Limits(10, 1, columns=4, rows=1, cell=30, text=50, items=10, events=40, excerpts=0, drawings=False),
)


@dataclass(frozen=True)
class Some(Generic[T]):
    """The first items of a list."""

    shown: tuple[T, ...]
    more: int
    """How many items are not among them."""

    @property
    def total(self) -> int:
        return len(self.shown) + self.more


#: A command of at most so many characters is never cut off: half of it is of no use. No real path is longer.
WHOLE_COMMAND = 1_500


def some(items: Iterable[T], most: int) -> Some[T]:
    rest = iter(items)
    return Some(tuple(islice(rest, most)), sum(1 for _ in rest))


def spread(items: Sequence[T], most: int) -> tuple[T, ...]:
    """At most ``most`` of the items, in their order and evenly from all parts of the list, with the first and the last."""
    if len(items) <= most:
        return tuple(items)
    return tuple(items[round(n * (len(items) - 1) / max(most - 1, 1))] for n in range(most))


def short(text: str, most: int = 240) -> str:
    """The first ``most`` characters; a longer text says how many more it has."""
    return text if len(text) <= most else f"{text[:most]}\u2026 ({len(text) - most:,} more characters)"
