"""Where the windows of cells that shared a run begin, in each query: by its own batch in the struck one, by time in the others.

A killed driver takes all queries along, and their batches have no common numbers. But the feed waits for every query before it
goes on, so that a batch of another query belongs to the last fault that fired before it was committed.

Unless a job commits ahead of its effects: what it had just committed is lost by the fault that fires next. So a batch of
another query that was committed after the batch before the struck one, and before the fault, may be either cell's. So may, for a
fault at ``before-offset-log`` of N, batch N-1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from onceproof.qualify.cells import Cell
from onceproof.qualify.schedule import Step
from onceproof.scenario.points import Point


@dataclass(frozen=True)
class Windows:
    """Query -> for each cell of a step a batch; infinite where none came after its fault."""

    first: Mapping[str, Sequence[float]]
    """The first batch that its fault struck, or that came after it."""
    may: Mapping[str, Sequence[float]]
    """The first that its fault may have struck although it was committed before; that of ``first`` where there is none."""

    def before(self, query: str, batch: int, index: int) -> bool:
        """Whether it precedes the window of the cell with that number; of an unknown query, too."""
        return query not in self.first or batch < self.first[query][index]

    def possible(self, query: str, batch: int, index: int) -> bool:
        """Whether what is found there may be that cell's."""
        if query not in self.first:
            return False
        after = self.first[query][index + 1 :]
        return self.may[query][index] <= batch < (after[0] if after else math.inf)

    def sure(self, query: str, batch: int, index: int) -> bool:
        """Whether it can only be that cell's."""
        return (
            self.possible(query, batch, index)
            and not self.before(query, batch, index)
            and batch < min(self.may[query][index + 1 :], default=math.inf)
        )

    @property
    def ordered(self) -> bool:
        """Whether each query passed the windows one after another. If not, an effect may be of either of two cells."""
        return all(
            one < other or one == other == math.inf for firsts in self.first.values() for one, other in pairwise(firsts)
        )


def by_batch(step: Step, queries: Iterable[str]) -> Windows:
    """Those of a job with one query: by the batches of the step."""
    may = [_since(cell, batch) + 1 for cell, batch in zip(step.cells, step.batches, strict=True)]
    names = list(queries)
    return Windows(dict.fromkeys(names, step.batches), dict.fromkeys(names, may))


def read(run_dir: Path, step: Step) -> Windows:
    """As the timeline of the run shows them. A fault that never fired counts from the plan of its batch."""
    with (run_dir / "events.jsonl").open(encoding="utf-8") as lines:
        return windows([json.loads(line) for line in lines], step)


def windows(events: Iterable[Mapping[str, Any]], step: Step) -> Windows:
    """``events`` in their order, as in ``events.jsonl``."""
    told = list(events)
    planned = _times(told, "batch.planned")
    committed = _times(told, "batch.committed")
    fired = {int(event["index"]): float(event["at"]) for event in told if event["kind"] == "fault.fired"}
    first: dict[str, list[float]] = {}
    may: dict[str, list[float]] = {}
    for query in sorted({query for query, _ in (*planned, *committed)}):
        later = sorted((number, at) for (name, number), at in committed.items() if name == query)
        first[query], may[query] = [], []
        for index, (cell, batch) in enumerate(zip(step.cells, step.batches, strict=True)):
            own = cell.query or query
            at = fired.get(index, planned.get((own, batch), math.inf))
            since = _since(cell, batch)
            if own == query:
                first[query].append(batch)
                may[query].append(since + 1)
            else:
                # Where nobody knows when the batch before was committed, any batch before the fault may be meant.
                before = min(committed.get((own, since), -math.inf), at)
                first[query].append(next((n for n, done in later if done > at), math.inf))
                may[query].append(next((n for n, done in later if done > before), math.inf))
    return Windows(first, may)


def _since(cell: Cell, batch: int) -> int:
    """The last batch of the struck query that the fault at ``batch`` cannot have struck."""
    return batch - (2 if cell.point is Point.BEFORE_OFFSET_LOG else 1)


def _times(events: Iterable[Mapping[str, Any]], kind: str) -> dict[tuple[str, int], float]:
    """Query and batch -> when that was first told."""
    times: dict[tuple[str, int], float] = {}
    for event in events:
        if event["kind"] == kind:
            times.setdefault((event["query"], int(event["batch"])), float(event["at"]))
    return times
