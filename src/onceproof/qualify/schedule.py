"""Chooses which cells share the next run, at which batches, and whether that run still fits into the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from onceproof.faults.evidence.writes import NOTHING_IN_DANGER
from onceproof.faults.job import FIRST
from onceproof.judge.findings import Outcome, Verdict
from onceproof.qualify.cells import Cell, CellState

APART = 2
"""Batches from one fault to the next: the window of a fault is the batch that it strikes, and the next."""
MOST = 8
"""Most cells of one run: if one of them breaks something for good, the others have to be tried again."""
MOST_EMPTY = 3
"""If nothing was in danger at this many batches, the cell is not tried at another one."""
ROWS_A_CHUNK = 20
"""Least records of a chunk, if there are enough: a batch of which the job keeps nothing has nothing to lose."""


@dataclass(frozen=True)
class RunStep:
    """One run: its cells, the batches that they strike, and how the input is fed."""

    cells: tuple[Cell, ...]
    batches: tuple[int, ...]
    """For each cell, the batch that it strikes."""
    chunks: Mapping[str, int]
    """Input topic -> number of chunks."""

    @property
    def shared(self) -> bool:
        return len(self.cells) > 1


@dataclass(frozen=True)
class Pace:
    """How long runs take, in seconds, as learned so far."""

    base_s: float = 15.0
    """A run without faults, from the first process to the verdict."""
    cell_s: float = 12.0
    """Each further fault: a restart of the driver, and two batches."""
    of_fault: Mapping[str, float] = field(default_factory=dict)
    """Kind and target -> ``cell_s`` of such a fault, if one was run alone: some wait for a time-out, most do not."""

    def alone(self, cell: Cell) -> float:
        """Return how long a run of this cell alone takes."""
        return self.base_s + self.of_fault.get(fault_of(cell), self.cell_s)

    def of(self, cells: int) -> float:
        return self.base_s + cells * self.cell_s

    def fitting(self, left_s: float) -> int:
        """Return how many cells a run may have if it must end within ``left_s``."""
        return max(int((left_s - self.base_s) / self.cell_s), 0)


def next_step(
    cells: Sequence[Cell],
    rows: Mapping[str, int],
    *,
    pace: Pace,
    left_s: float,
    first: Mapping[str | None, int] | None = None,
) -> RunStep | None:
    """Return a run of several pending cells that were not run yet; else of the first pending cell that fits into ``left_s``, alone.

    A cell that held before, and is pending because of a repetition, strikes a batch at which it did not hold yet. None if no cell is pending, or none fits. ``rows``: input topic -> number of records. ``first``: as for `step`.
    """
    pending = [cell for cell in cells if cell.state is CellState.PENDING]
    sharing = [cell for cell in pending if not cell.alone]
    most = min(MOST, pace.fitting(left_s), _cells_with_data(rows))
    if len(sharing) > 1 and most > 1:
        return step(sharing[:most], rows, first)
    fitting = next((cell for cell in pending if pace.alone(cell) <= left_s), None)
    return None if fitting is None else _at_other_batches([fitting], rows, first) or step([fitting], rows, first)


def repeat_step(
    cells: Sequence[Cell],
    rows: Mapping[str, int],
    *,
    tries: int,
    pace: Pace,
    left_s: float,
    first: Mapping[str | None, int] | None = None,
) -> RunStep | None:
    """Return a run that repeats held cells at batches at which they were not tried; None if each has ``tries`` or none fits.

    Held cells only: one violation decides. A cell whose fault missed `MOST_EMPTY` times in all is not repeated again.
    """
    held = [cell for cell in cells if cell.exercised and cell.verdict is Outcome.HELD and _repeatable(cell, tries)]
    fewest = min((len(cell.hits) for cell in held), default=0)
    turn = [cell for cell in held if len(cell.hits) == fewest]
    sharing = [cell for cell in turn if not cell.alone]
    most = min(MOST, pace.fitting(left_s), _cells_with_data(rows))
    if sharing and most > 0:
        return _at_other_batches(sharing[:most], rows, first)
    fitting = next((cell for cell in turn if cell.alone and pace.alone(cell) <= left_s), None)
    return None if fitting is None else _at_other_batches([fitting], rows, first)


def _at_other_batches(
    cells: Sequence[Cell], rows: Mapping[str, int], first: Mapping[str | None, int] | None
) -> RunStep | None:
    """Return a run of these cells in which each strikes a batch at which it did not hit before; None if there is none."""
    left, chosen, slots = list(cells), [], []
    for slot in count():
        new = next((cell for cell in left if _batch_for(cell, slot, first or {}) not in cell.hits), None)
        if new is not None:
            left.remove(new)
            chosen.append(new)
            slots.append(slot)
        if not left:
            found = step(chosen, rows, first, slots)
            again = any(batch in cell.hits for cell, batch in zip(found.cells, found.batches, strict=True))
            return None if again else found  # a small input has no other batches
    raise AssertionError("unreachable: a cell has hit at finitely many batches")


def _repeatable(cell: Cell, tries: int) -> bool:
    return 0 < len(cell.hits) < tries and cell.tries - len(cell.hits) < MOST_EMPTY


def needed_s(cells: Sequence[Cell], pace: Pace) -> float | None:
    """Return how long the shortest run takes that a pending cell still needs; None if no cell is pending."""
    return min((pace.alone(cell) for cell in cells if cell.state is CellState.PENDING), default=None)


def fault_of(cell: Cell) -> str:
    """Return kind and target (``crash driver``), by which times are learned."""
    return " ".join(filter(None, [cell.kind, cell.target]))


def step(
    chosen: Sequence[Cell],
    rows: Mapping[str, int],
    first: Mapping[str | None, int] | None = None,
    slots: Sequence[int] | None = None,
) -> RunStep:
    """Return a run of exactly these cells.

    ``first``: query of a cell -> the batch at which the first fault of a run is to strike (`Job.first_batches`).
    ``slots``: for each cell, by how many times `APART` batches its fault comes later than that; default: 0, 1, 2, ...
    """
    least = max(rows.values())
    places = range(len(chosen)) if slots is None else slots
    wanted = [_batch_for(cell, place, first or {}) for cell, place in zip(chosen, places, strict=True)]
    chunks = min(max(wanted) + APART, least)
    beyond = max(max(wanted) - (chunks - 1), 0)  # with few records, strike earlier, so that each batch is still reached
    return RunStep(
        tuple(chosen),
        tuple(batch - beyond for batch in wanted),
        {topic: min(chunks, count) for topic, count in rows.items()},
    )


def _batch_for(cell: Cell, index: int, first: Mapping[str | None, int]) -> int:
    """Return the batch for cell number ``index`` of its run; a batch at which the cell found nothing in danger is skipped."""
    batch = first.get(cell.query, FIRST) + APART * index
    while batch in cell.empty:
        batch += 1
    return batch


def retry_where_nothing_was_in_danger(chosen: RunStep, tried: Sequence[Cell], verdict: Verdict) -> list[Cell]:
    """Return the cells after their run. A cell whose batch had nothing in danger becomes pending again, for another batch."""
    found = []
    for cell, batch, number in zip(tried, chosen.batches, range(len(tried)), strict=True):
        fault = verdict.faults[number] if number < len(verdict.faults) else None
        if fault is None or fault.hit or not any(NOTHING_IN_DANGER in words for words in fault.evidence):
            found.append(cell)
            continue
        empty = (*cell.empty, batch)
        again = cell.state is CellState.NOT_REACHED and cell.verdict is None and len(empty) < MOST_EMPTY
        state = CellState.PENDING if again else cell.state
        found.append(replace(cell, empty=empty, state=state))
    return found


def _cells_with_data(rows: Mapping[str, int]) -> int:
    """Return for how many cells the input has enough records."""
    return max((max(rows.values()) // ROWS_A_CHUNK - FIRST) // APART, 1)
