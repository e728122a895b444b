"""Which cells share the next run, at which batches, and whether it still fits into the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onceproof.qualify.cells import Cell, State

FIRST = 2
"""Batch of a run's first fault: one batch with data went before it undisturbed (batch 0 is nearly always empty)."""
APART = 2
"""Batches from one fault to the next: the one that is hit, and the next, which is still its window."""
MOST = 8
"""Cells of a run: what one of them breaks for good, the others have to be tried again for."""
ROWS_A_CHUNK = 20
"""Records of a chunk, where there are enough: a batch of which the job keeps nothing has nothing to lose."""


@dataclass(frozen=True)
class Step:
    """The next run."""

    cells: tuple[Cell, ...]
    batches: tuple[int, ...]
    """Of each cell, the batch that it strikes."""
    chunks: Mapping[str, int]
    """Input topic -> parts that it is fed in."""

    @property
    def shared(self) -> bool:
        return len(self.cells) > 1


@dataclass(frozen=True)
class Pace:
    """How long things take, in seconds; learned from the runs so far."""

    base_s: float = 15.0
    """A run without faults, from the first process to the verdict."""
    cell_s: float = 12.0
    """Each fault more: a restart of the driver, and two batches."""

    def of(self, cells: int) -> float:
        return self.base_s + cells * self.cell_s

    def fitting(self, left_s: float) -> int:
        """How many cells a run may have that must end within ``left_s``."""
        return max(int((left_s - self.base_s) / self.cell_s), 0)


def next_step(cells: Sequence[Cell], rows: Mapping[str, int], *, pace: Pace, left_s: float) -> Step | None:
    """The most telling cells that are pending, as many as one run takes; None if none is, or none fits into ``left_s``.

    ``rows`` are the records of each input topic.
    """
    pending = [cell for cell in cells if cell.state is State.PENDING]
    fits = pace.fitting(left_s)
    if not pending or not fits:
        return None
    sharing = [cell for cell in pending if not cell.alone]
    most = min(MOST, fits, _room(rows))
    chosen = sharing[:most] if sharing and not pending[0].alone else pending[:1]
    return step(chosen, rows)


def step(chosen: Sequence[Cell], rows: Mapping[str, int]) -> Step:
    """A run of just these cells."""
    least = max(rows.values())
    chunks = min(FIRST + APART * len(chosen), least)
    first = min(FIRST, chunks - 1)
    return Step(
        tuple(chosen),
        tuple(first + APART * index for index in range(len(chosen))),
        {topic: min(chunks, count) for topic, count in rows.items()},
    )


def _room(rows: Mapping[str, int]) -> int:
    """How many cells the input feeds."""
    return max((max(rows.values()) // ROWS_A_CHUNK - FIRST) // APART, 1)
