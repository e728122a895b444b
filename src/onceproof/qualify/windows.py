"""Finds where the windows of cells that shared a run begin: by batch number in the struck query, by time in the others.

A killed driver ends all of its queries, and their batches have no common numbers. But the feed waits for every query before it
goes on, so a batch of another query belongs to the last fault that fired before that batch was committed.

A job that commits ahead of its effects is an exception: the next fault loses what the job had just committed. So a batch of
another query may belong to either of two cells if it was committed before the fault, and after the batch that precedes the struck
one. The same is true of batch N-1 if the fault is at ``before-offset-log`` of N.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from onceproof.base.timeline import Event
from onceproof.qualify.cells import Cell
from onceproof.qualify.schedule import RunStep
from onceproof.scenario.points import Point


@dataclass(frozen=True)
class Windows:
    """For each query and each cell of a step, where the cell's window begins."""

    first: Mapping[str, Sequence[float]]
    """Query -> for each cell the first batch that its fault struck, or that came after the fault; infinite if none did."""
    may: Mapping[str, Sequence[float]]
    """Query -> for each cell the first batch that its fault may have struck although it was committed before; else as ``first``."""

    def before(self, query: str, batch: int, index: int) -> bool:
        """Whether the batch precedes the window of cell number ``index``; true for an unknown query."""
        return query not in self.first or batch < self.first[query][index]

    def possible(self, query: str, batch: int, index: int) -> bool:
        """Whether a finding in this batch may belong to cell number ``index``."""
        if query not in self.first:
            return False
        after = self.first[query][index + 1 :]
        return self.may[query][index] <= batch < (after[0] if after else math.inf)

    def sure(self, query: str, batch: int, index: int) -> bool:
        """Whether a finding in this batch can only belong to cell number ``index``."""
        return (
            self.possible(query, batch, index)
            and not self.before(query, batch, index)
            and batch < min(self.may[query][index + 1 :], default=math.inf)
        )

    @property
    def ordered(self) -> bool:
        """Whether each query passed the windows one after another. If not, an effect may belong to either of two cells."""
        return all(
            one < other or one == other == math.inf for firsts in self.first.values() for one, other in pairwise(firsts)
        )


def by_batch(step: RunStep, queries: Iterable[str]) -> Windows:
    """Return the windows of a job with one query, from the batches of the step."""
    may = [_last_before(cell, batch) + 1 for cell, batch in zip(step.cells, step.batches, strict=True)]
    names = list(queries)
    return Windows(dict.fromkeys(names, step.batches), dict.fromkeys(names, may))


def windows(events: Sequence[Event], step: RunStep) -> Windows:
    """Return the windows that the events of a run show. A fault that never fired counts from the plan of its batch."""
    planned = _first_times(events, "batch.planned")
    committed = _first_times(events, "batch.committed")
    fired = {int(event.data["index"]): event.at for event in events if event.kind == "fault.fired"}
    first: dict[str, list[float]] = {}
    may: dict[str, list[float]] = {}
    for query in sorted({query for query, _ in (*planned, *committed)}):
        later = sorted((number, at) for (name, number), at in committed.items() if name == query)
        first[query], may[query] = [], []
        for index, (cell, batch) in enumerate(zip(step.cells, step.batches, strict=True)):
            own = cell.query or query
            at = fired.get(index, planned.get((own, batch), math.inf))
            since = _last_before(cell, batch)
            if own == query:
                first[query].append(batch)
                may[query].append(since + 1)
            else:
                # If it is not known when the preceding batch was committed, every batch before the fault is possible.
                before = min(committed.get((own, since), -math.inf), at)
                first[query].append(next((n for n, done in later if done > at), math.inf))
                may[query].append(next((n for n, done in later if done > before), math.inf))
    return Windows(first, may)


def _last_before(cell: Cell, batch: int) -> int:
    """Return the last batch of the struck query that the fault at ``batch`` cannot have struck."""
    return batch - (2 if cell.point is Point.BEFORE_OFFSET_LOG else 1)


def _first_times(events: Iterable[Event], kind: str) -> dict[tuple[str, int], float]:
    """Return query and batch -> when the first event of this kind was recorded."""
    times: dict[tuple[str, int], float] = {}
    for event in events:
        if event.kind == kind:
            times.setdefault((event.data["query"], int(event.data["batch"])), event.at)
    return times
