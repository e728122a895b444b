"""Rejected PUT: the object store refuses to write the batch's entry in the commit log, until it has done so several times.

No answer is faked: the store's administrator makes the folder of the log read-only, and the store answers each PUT with an
error. The protocol proxy only reads the answers.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.base.words import times
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, faults, missed, proven
from onceproof.faults.frames import HIT_S, placement_at_frame, wait_for_commit
from onceproof.faults.puts import PutFault, PutSpec, StoppedPut, describe_put, folder_of
from onceproof.instruments.proxy.rules import Hit
from onceproof.scenario.model import FaultSpec, Scenario

_REFUSED = 500
"""The store's answer to a write into a folder that is read-only. A wrong signature, for example, is a 403."""


class RejectedPutSpec(PutSpec):
    fault: Literal["rejected-put"]
    times: PositiveInt = Field(
        3, le=100, description="how many PUTs the store must have refused before it accepts them again"
    )


@faults.register("rejected-put")
class RejectedPut(PutFault):
    """The object store refuses to write commits/N: its folder is read-only until ``times`` requests were refused."""

    Spec: ClassVar[type[FaultSpec]] = RejectedPutSpec
    about: ClassVar[str] = "the object store refuses to write the commit log's entry"

    def __init__(self, spec: RejectedPutSpec) -> None:
        self._spec = spec
        self._put = StoppedPut("park", attempts=True)

    @classmethod
    def placement(cls, spec: RejectedPutSpec, scenario: Scenario) -> Placement:
        return placement_at_frame(
            spec.at.point, f"the store's own answers: {spec.times} refusals of the batch's entry", scenario
        )

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        assert context.stack.object_store is not None, "validated"
        context.stack.object_store.refuse_writes(f"{folder_of(context, seen.query)}/commits/")
        self._put.arm(context, seen)
        self._put.rule.release()  # nothing is held: the proxy passes each request on at once, and reads its answer

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        first = self._put.wait_for_hit(context, seen)
        if isinstance(first, Proof):
            return first
        try:
            refused = wait_until(
                f"{self._spec.times} refusals by the object store",
                lambda: found if len(found := self._refused()) >= self._spec.times else None,
                deadline_s=HIT_S,
            )
        except WaitTimeout as never:
            return missed(never.message, f"it refused {len(self._refused())} of {len(self._put.rule.hits)} requests")
        self.heal(context)
        statuses = ", ".join(sorted({str(hit.answer.facts["status"]) for hit in refused if hit.answer is not None}))
        evidence = f"the store refused {times(len(refused), 'request')} for the entry, with {statuses}; the first was {describe_put(refused[0].frame)}"
        return proven(evidence, wait_for_commit(context, seen))

    def heal(self, context: FaultContext) -> None:
        try:
            if context.stack.object_store is not None:
                context.stack.object_store.accept_writes()
        finally:
            self._put.close(context)

    def _refused(self) -> list[Hit]:
        return [hit for hit in self._put.rule.hits if hit.answer is not None and hit.answer.facts["status"] == _REFUSED]
