"""Decides whether a batch wrote anything: compares the outputs at its plan with the outputs at its commit.

A batch of a stateful query may read nothing and write much: the windows that the watermark has closed. A fault in a batch
without input therefore endangers something if the batch changes an output, or was stopped or refused while writing.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onceproof.base.masking import masked
from onceproof.faults.evidence.sink_state import changes, output_state
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.points import Point
from onceproof.stores.contract import State, store_of

if TYPE_CHECKING:
    from onceproof.faults.context import FaultContext


NOTHING_IN_DANGER = "nothing was in danger"
"""Part of the evidence for a fault in a batch that neither read input nor wrote anything."""


@dataclass
class _Bracket:
    """One batch between its plan and its commit. Times are seconds of the run's clock."""

    before: State
    since: float
    after: State | None = None
    until: float | None = None


@dataclass(frozen=True)
class Written:
    """The outputs that a batch changed."""

    outputs: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    """One sentence per change: ``table orders: 10 rows -> 17 rows``."""
    unclear: str | None = None
    """Why the change cannot be attributed to this batch; None if it can."""


@dataclass
class WriteWatch:
    """Reads the outputs when one of its batches is planned, and when it is committed. Thread-safe.

    ``numbers``: the batches to watch. Those that read input are watched only if they are in ``also_reading``: for faults that
    need a batch's write, its input is not enough.
    """

    numbers: frozenset[int]
    also_reading: frozenset[int] = frozenset()
    _brackets: dict[tuple[str, int], _Bracket] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def points(self) -> list[tuple[int, Point]]:
        """The batches and points at which a driver has to wait while the outputs are read."""
        return [(batch, point) for batch in sorted(self.numbers) for point in _ENDS]

    def reached(self, context: FaultContext, query: str, batch: int, point: Point) -> None:
        """Read the outputs at the first plan and at the commit of a watched batch. The plan of a replay does not count."""
        key = (query, batch)
        if batch not in self.numbers or point not in _ENDS:
            return
        known = self._brackets.get(key)
        try:
            if point is Point.AFTER_OFFSET_LOG:
                if known is None and (batch in self.also_reading or context.checkpoint.reads_nothing(query, batch)):
                    state = self._look(context, query)
                    with self._lock:
                        self._brackets.setdefault(key, _Bracket(state, context.timeline.now()))
            elif known is not None and known.after is None:
                state = self._look(context, query)
                known.after, known.until = state, context.timeline.now()
        except Exception as failure:  # a fault may have made a service unreachable; `written` tries again later
            message = f"the outputs could not be read when batch {batch} of query {query} reached {point}: {failure}"
            context.timeline.emit("warning", message=masked(message))

    def at_commit(self, context: FaultContext, query: str, batch: int) -> Written | None:
        """What the batch had written when it was committed; None if the outputs were not read then. Asks no service."""
        bracket = self._brackets.get((query, batch))
        return None if bracket is None or bracket.after is None else self.written(context, query, batch)

    def written(self, context: FaultContext, query: str, batch: int) -> Written | None:
        """What the batch has written until its commit, or until now if the outputs were not read then.

        None if the outputs were not read at its plan, or if the query writes to no output of the scenario.
        """
        bracket = self._brackets.get((query, batch))
        if bracket is None or not self._outputs(context, query):
            return None
        try:
            after = bracket.after if bracket.after is not None else self._look(context, query)
        except Exception as failure:  # the service is still unreachable
            return Written(unclear=f"the outputs could not be read: {failure}")
        changed = changes(bracket.before, after)
        outputs = [
            name for name, spec in self._outputs(context, query).items() if _changed(spec, bracket.before, after)
        ]
        until = bracket.until if bracket.until is not None else context.timeline.now()
        unnamed = [name for name in outputs if self._outputs(context, query)[name].query is None]
        others = _open_meanwhile(context, query, bracket.since, until) if unnamed else []
        unclear = None
        if others and len(unnamed) == len(outputs):
            unclear = (
                f"queries {', '.join(sorted({query, *others}))} had batches open at the same time, and which of them wrote to "
                f"{', '.join(unnamed)} is not known: name the query under outputs: {unnamed[0]}: query:"
            )
        if not changed and unclear is None:
            unclear = self._unseen(context, query, bracket.before.keys() | after.keys())
        return Written(tuple(outputs), tuple(changed), unclear)

    def _look(self, context: FaultContext, query: str) -> State:
        return output_state(context.stack, self._outputs(context, query).values())

    def _unseen(self, context: FaultContext, query: str, seen: Collection[str]) -> str | None:
        """Why it is not known that a table did not change: it was never found. It may be a view, or in a schema of its own."""
        for spec in self._outputs(context, query).values():
            if spec.table is not None and store_of(spec).name(spec) not in seen:
                return f"{store_of(spec).name(spec)} was not found, neither before the batch nor after it"
        return None

    @staticmethod
    def _outputs(context: FaultContext, query: str) -> Mapping[str, OutputSpec]:
        """The outputs that the query may write to."""
        if context.scenario is None:
            return {}
        return {name: spec for name, spec in context.scenario.outputs.items() if spec.query in (None, query)}


_ENDS = (Point.AFTER_OFFSET_LOG, Point.AFTER_COMMIT_LOG)


def _changed(spec: OutputSpec, before: State, after: State) -> bool:
    name = store_of(spec).name(spec)
    return before.get(name) != after.get(name)


def _open_meanwhile(context: FaultContext, query: str, since: float, until: float) -> list[str]:
    """Other queries that had a batch open in that time."""
    found = [
        b.query
        for b in context.checkpoint.batches()
        if b.query != query and b.planned_at <= until and (b.committed_at is None or b.committed_at >= since)
    ]
    return list(dict.fromkeys(found))
