"""Which cells share the next run, at which batches, and whether it still fits into the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from onceproof.faults.evidence.writes import NOTHING_IN_DANGER
from onceproof.faults.job import FIRST
from onceproof.judge.findings import Verdict
from onceproof.qualify.cells import Cell, State

APART = 2
"""Batches from one fault to the next: the one that is hit, and the next, which is still its window."""
MOST = 8
"""Cells of a run: what one of them breaks for good, the others have to be tried again for."""
MOST_EMPTY = 3
"""Batches at which a cell is tried that turn out to have nothing in danger: then it has none that it could find."""
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


def next_step(
    cells: Sequence[Cell],
    rows: Mapping[str, int],
    *,
    pace: Pace,
    left_s: float,
    first: Mapping[str | None, int] | None = None,
) -> Step | None:
    """Several pending cells that were not run yet; else the first pending one that fits into ``left_s``, alone.

    None if no cell is pending, or none fits. ``rows`` are the records of each input topic; ``first`` as for `step`.
    """
    pending = [cell for cell in cells if cell.state is State.PENDING]
    sharing = [cell for cell in pending if not cell.alone]
    most = min(MOST, pace.fitting(left_s), _room(rows))
    if len(sharing) > 1 and most > 1:
        return step(sharing[:most], rows, first)
    fitting = next((cell for cell in pending if pace.alone(cell) <= left_s), None)
    return None if fitting is None else step([fitting], rows, first)


def needed_s(cells: Sequence[Cell], pace: Pace) -> float | None:
    """How long the shortest run takes that a pending cell still needs; None if no cell is pending."""
    return min((pace.alone(cell) for cell in cells if cell.state is State.PENDING), default=None)


def fault_of(cell: Cell) -> str:
    """``crash driver``: what tells how long a cell takes."""
    return " ".join(filter(None, [cell.kind, cell.target]))


def step(chosen: Sequence[Cell], rows: Mapping[str, int], first: Mapping[str | None, int] | None = None) -> Step:
    """A run of just these cells.

    ``first``: query of a cell -> the batch at which the first fault of a run is to strike there (`Job.first_batches`).
    """
    least = max(rows.values())
    wanted = [_wanted(cell, index, first or {}) for index, cell in enumerate(chosen)]
    chunks = min(max(wanted) + APART, least)
    beyond = max(max(wanted) - (chunks - 1), 0)  # of few records: earlier, so that each batch is still reached
    return Step(
        tuple(chosen),
        tuple(batch - beyond for batch in wanted),
        {topic: min(chunks, count) for topic, count in rows.items()},
    )


def _wanted(cell: Cell, index: int, first: Mapping[str | None, int]) -> int:
    """The batch of a cell that is number ``index`` of its run. Alone, it is none that has proven empty."""
    batch = first.get(cell.query, FIRST) + APART * index
    while batch in cell.empty:
        batch += 1
    return batch


def elsewhere(chosen: Step, tried: Sequence[Cell], verdict: Verdict) -> list[Cell]:
    """The cells after their run: one whose batch had nothing in danger is tried again, alone and at another batch."""
    found = []
    for cell, batch, number in zip(tried, chosen.batches, range(len(tried)), strict=True):
        fault = verdict.faults[number] if number < len(verdict.faults) else None
        if fault is None or fault.hit or not any(NOTHING_IN_DANGER in words for words in fault.evidence):
            found.append(cell)
            continue
        empty = (*cell.empty, batch)
        again = cell.state is State.NOT_REACHED and cell.verdict is None and len(empty) < MOST_EMPTY
        state = State.PENDING if again else cell.state
        found.append(replace(cell, empty=empty, state=state))
    return found


def _room(rows: Mapping[str, int]) -> int:
    """How many cells the input feeds."""
    return max((max(rows.values()) // ROWS_A_CHUNK - FIRST) // APART, 1)
