"""Where the windows of cells that shared a run begin, in each query: by its own batch in the struck one, by time in the others.

A killed driver takes all queries along, and their batches have no common numbers. But the feed waits for every query before it
goes on, so that a batch of another query belongs to the last fault that fired before it was committed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from onceproof.qualify.schedule import Step

Windows = Mapping[str, Sequence[float]]
"""Query -> for each cell of a step the first batch of its window; infinite where none came after its fault."""


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
    found: dict[str, list[float]] = {}
    for query in sorted({query for query, _ in (*planned, *committed)}):
        later = sorted((number, at) for (name, number), at in committed.items() if name == query)
        firsts = []
        for index, (cell, batch) in enumerate(zip(step.cells, step.batches, strict=True)):
            own = cell.query or query
            at = fired.get(index, planned.get((own, batch), math.inf))
            firsts.append(float(batch) if own == query else next((n for n, done in later if done > at), math.inf))
        found[query] = firsts
    return found


def ordered(windows: Windows) -> bool:
    """Whether each query passed the windows one after another. If not, an effect may be of either of two cells."""
    return all(
        one < other or one == other == math.inf for firsts in windows.values() for one, other in pairwise(firsts)
    )


def _times(events: Iterable[Mapping[str, Any]], kind: str) -> dict[tuple[str, int], float]:
    """Query and batch -> when that was first told."""
    times: dict[tuple[str, int], float] = {}
    for event in events:
        if event["kind"] == kind:
            times.setdefault((event["query"], int(event["batch"])), float(event["at"]))
    return times
