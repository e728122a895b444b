"""Which cells share the next run, at which batches, and whether it still fits into the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    of_fault: Mapping[str, float] = field(default_factory=dict)
    """Kind and target -> ``cell_s`` of such a fault, where one was run alone: some wait for a time-out, most do not."""

    def alone(self, cell: Cell) -> float:
        """How long a run of this cell alone takes."""
        return self.base_s + self.of_fault.get(fault_of(cell), self.cell_s)

    def of(self, cells: int) -> float:
        return self.base_s + cells * self.cell_s

    def fitting(self, left_s: float) -> int:
        """How many cells a run may have that must end within ``left_s``."""
        return max(int((left_s - self.base_s) / self.cell_s), 0)


def next_step(cells: Sequence[Cell], rows: Mapping[str, int], *, pace: Pace, left_s: float) -> Step | None:
    """Several pending cells that were not run yet; else the first pending one that fits into ``left_s``, alone.

    None if no cell is pending, or none fits. ``rows`` are the records of each input topic.
    """
    pending = [cell for cell in cells if cell.state is State.PENDING]
    sharing = [cell for cell in pending if not cell.alone]
    most = min(MOST, pace.fitting(left_s), _room(rows))
    if len(sharing) > 1 and most > 1:
        return step(sharing[:most], rows)
    fitting = next((cell for cell in pending if pace.alone(cell) <= left_s), None)
    return None if fitting is None else step([fitting], rows)


def needed_s(cells: Sequence[Cell], pace: Pace) -> float | None:
    """How long the shortest run takes that a pending cell still needs; None if no cell is pending."""
    return min((pace.alone(cell) for cell in cells if cell.state is State.PENDING), default=None)


def fault_of(cell: Cell) -> str:
    """``crash driver``: what tells how long a cell takes."""
    return " ".join(filter(None, [cell.kind, cell.target]))


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
