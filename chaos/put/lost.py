"""Lost PUT: the object store writes the batch's entry in the commit log, and its answer never arrives.

The client sends the request again. A plain PUT only writes the same entry twice; a conditional one (``If-None-Match: *``)
fails, because the entry is there: to the driver it looks as if another driver had committed the batch.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from onceproof.base.errors import WaitTimeout
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, faults, missed, proven
from onceproof.faults.frames import ANSWER_S, placement_at_frame, wait_for_commit
from onceproof.faults.puts import PutFault, PutSpec, StoppedPut, describe_put
from onceproof.scenario.model import FaultSpec, Scenario


class LostPutSpec(PutSpec):
    fault: Literal["lost-put"]


@faults.register("lost-put")
class LostPut(PutFault):
    """The PUT of commits/N is applied; its answer is dropped, and the client's connection is reset."""

    Spec: ClassVar[type[FaultSpec]] = LostPutSpec
    about: ClassVar[str] = "the object store writes the commit log's entry, and the answer is lost"

    def __init__(self, spec: LostPutSpec) -> None:
        self._put = StoppedPut("drop-answer")

    @classmethod
    def placement(cls, spec: LostPutSpec, scenario: Scenario) -> Placement:
        return placement_at_frame(
            spec.at.point, "the store's answer, which was dropped, says that the entry was written", scenario
        )

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        hit = self._put.wait_for_hit(context, seen)
        if isinstance(hit, Proof):
            return hit
        request = describe_put(hit.frame)
        try:
            answer = self._put.rule.wait_for_answer(hit, ANSWER_S)
        except WaitTimeout as never:
            return missed(f"{request} was delivered", never.message)
        status = answer.facts["status"]
        if status != 200 or "error" in answer.facts:
            why = f"the store answered {status} {answer.facts.get('error', '')}".rstrip()
            return missed(f"{request} was delivered", f"{why}: nothing was written")
        evidence = f"{request} was delivered and answered {status}; the answer was dropped, and the connection reset"
        return proven(evidence, wait_for_commit(context, seen))
