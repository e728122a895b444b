"""Whether a batch writes: what the outputs hold when it is planned, and again when it is committed.

A batch of a stateful query may read nothing and write much: the windows that the watermark has closed. So a fault in a batch
without input endangers something if that batch changes an output, or was stopped or refused when it tried to.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
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
"""Said of a fault in a batch that neither held data nor wrote any."""


@dataclass
class _Bracket:
    """One batch between its plan and its commit. Times are seconds of the run's clock."""

    before: State
    since: float
    after: State | None = None
    until: float | None = None


@dataclass(frozen=True)
class Written:
    """What a batch was seen to write."""

    outputs: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    """Sentences: ``table orders: 10 rows -> 17 rows``."""
    unclear: str | None = None
    """Why a change cannot be said to be this batch's."""


@dataclass
class WriteWatch:
    """Looks at the outputs whenever a batch that matters is planned and committed. Thread-safe.

    ``numbers``: the batches that matter. Of those that read input only those in ``also_reading`` are looked at: that they read
    says nothing of a fault that needs their write.
    """

    numbers: frozenset[int]
    also_reading: frozenset[int] = frozenset()
    _brackets: dict[tuple[str, int], _Bracket] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def points(self) -> list[tuple[int, Point]]:
        """Where a driver has to wait while the outputs are looked at."""
        return [(batch, point) for batch in sorted(self.numbers) for point in _ENDS]

    def reached(self, context: FaultContext, query: str, batch: int, point: Point) -> None:
        """A batch has come to its plan or to its commit. The first plan counts: a replay writes the same batch."""
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
        except (
            Exception
        ) as failure:  # a service that a fault has taken away: the look is made up for later, if it can be
            words = f"the outputs could not be looked at when batch {batch} of query {query} reached {point}: {failure}"
            context.timeline.emit("warning", message=masked(words))

    def at_commit(self, context: FaultContext, query: str, batch: int) -> Written | None:
        """What it had written when it was committed; None where nobody looked then. Asks no service."""
        bracket = self._brackets.get((query, batch))
        return None if bracket is None or bracket.after is None else self.written(context, query, batch)

    def written(self, context: FaultContext, query: str, batch: int) -> Written | None:
        """What it has written until its commit, or until now if nobody looked then; None where nobody looked at its plan,
        and of a query that writes to no output of the scenario."""
        bracket = self._brackets.get((query, batch))
        if bracket is None or not self._outputs(context, query):
            return None
        try:
            after = bracket.after if bracket.after is not None else self._look(context, query)
        except Exception as failure:  # a service that is still away
            return Written(unclear=f"the outputs could not be looked at: {failure}")
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
                f"queries {', '.join(sorted({query, *others}))} were open at the same time, and which of them wrote to "
                f"{', '.join(unnamed)} is not known: name it under outputs: {unnamed[0]}: query:"
            )
        return Written(tuple(outputs), tuple(changed), unclear)

    def _look(self, context: FaultContext, query: str) -> State:
        return output_state(context.stack, self._outputs(context, query).values())

    @staticmethod
    def _outputs(context: FaultContext, query: str) -> Mapping[str, OutputSpec]:
        """The outputs that this query may write to."""
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
