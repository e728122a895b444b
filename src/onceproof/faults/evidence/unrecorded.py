"""Decides whether rows of an epoch were visible before its end was recorded, as they are in continuous processing.

A driver that dies before it writes ``offsets/N`` leaves no trace of what its epoch N has read, and the epoch N of the next
driver is another one, which often reads nothing. In danger is what the outputs received after ``commits/N-1``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from onceproof.base.masking import masked
from onceproof.faults.contract import Occurrence, Proof, missed
from onceproof.faults.evidence.sink_state import changes, output_state
from onceproof.scenario.modes import without_batches
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.points import Point
from onceproof.stores.contract import State

if TYPE_CHECKING:
    from onceproof.faults.context import FaultContext


class UnrecordedRows:
    """Reads the outputs at the commit of the epoch before one of ``epochs``, and when its driver is about to record its end."""

    def __init__(self, epochs: frozenset[int]) -> None:
        self._epochs = epochs
        self._before: dict[tuple[str, int], State] = {}
        self._changes: dict[tuple[str, int, int | None], list[str]] = {}
        """Query, epoch and attempt. The next driver comes to the same point before the fault is proven, and has written more."""

    def points(self) -> list[tuple[int, Point]]:
        """The batches and points at which a driver has to wait while the outputs are read."""
        ends = [(Point.AFTER_COMMIT_LOG, -1), (Point.BEFORE_OFFSET_LOG, 0)]
        return [(epoch + step, point) for epoch in sorted(self._epochs) if epoch for point, step in ends]

    def reached(self, context: FaultContext, seen: Occurrence) -> None:
        """Read the outputs, if the query is in continuous processing and the driver waits at one of `points`."""
        query, epoch = seen.query, seen.batch
        if (epoch, seen.point) not in self.points() or query not in without_batches(context.modes):
            return
        try:
            outputs = _outputs(context, query)
            if outputs and seen.point is Point.AFTER_COMMIT_LOG:
                self._before[query, epoch + 1] = output_state(context.stack, outputs)
            elif (before := self._before.get((query, epoch))) is not None:
                self._changes[query, epoch, seen.attempt] = changes(before, output_state(context.stack, outputs))
        except Exception as failure:
            # A fault may have made a service unreachable; the proof then names what is missing.
            message = (
                f"the outputs could not be read when epoch {epoch} of query {query} reached {seen.point}: {failure}"
            )
            context.timeline.emit("warning", message=masked(message))

    def check(self, seen: Occurrence, proof: Proof) -> Proof:
        """The proof, with the rows that no log records when the fault strikes; a miss if there are none."""
        epoch = seen.batch
        if not epoch:
            return missed(
                *proof.evidence, "what the outputs received before offsets/0 is not known; choose a later epoch"
            )
        found = self._changes.get((seen.query, epoch, seen.attempt))
        between = f"between commits/{epoch - 1} and offsets/{epoch}"
        if found is None:
            return missed(*proof.evidence, f"what the outputs received {between} is not known")
        if not found:
            return missed(*proof.evidence, f"no output received anything {between}, so nothing was in danger")
        return replace(proof, evidence=(*proof.evidence, f"{between}, outputs received rows: {'; '.join(found)}"))


def _outputs(context: FaultContext, query: str) -> list[OutputSpec]:
    """The outputs that no other query writes to."""
    alone = len(context.checkpoint.queries()) == 1
    outputs = context.scenario.outputs.values() if context.scenario is not None else ()
    return [spec for spec in outputs if spec.query == query or (alone and spec.query is None)]
