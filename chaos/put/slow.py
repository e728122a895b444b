"""Slow PUT: the batch's entry in the commit log arrives at the object store late. The sink has committed long before."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, faults, missed, proven
from onceproof.faults.frames import ANSWER_S, placement_at_frame, wait_for_commit
from onceproof.faults.placement import committed
from onceproof.faults.puts import PutFault, PutSpec, StoppedPut, describe_put
from onceproof.instruments.proxy.rules import now
from onceproof.scenario.model import FaultSpec, Scenario


class SlowPutSpec(PutSpec):
    fault: Literal["slow-put"]
    by_ms: PositiveInt = Field(3000, le=60_000, description="how long the request is held, milliseconds")


@faults.register("slow-put")
class SlowPut(PutFault):
    """The PUT of commits/N is held before it reaches the object store, and then delivered."""

    Spec: ClassVar[type[FaultSpec]] = SlowPutSpec
    about: ClassVar[str] = "the commit log's entry arrives at the object store late"

    def __init__(self, spec: SlowPutSpec) -> None:
        self._spec = spec
        self._put = StoppedPut("park")

    @classmethod
    def placement(cls, spec: SlowPutSpec, scenario: Scenario) -> Placement:
        proof = f"the request was held for {spec.by_ms} ms, and the entry was not there meanwhile"
        return placement_at_frame(spec.at.point, proof, scenario)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        hit = self._put.wait_for_hit(context, seen)
        if isinstance(hit, Proof):
            return hit
        by_s = self._spec.by_ms / 1000
        wait_until(
            f"the request to be {self._spec.by_ms} ms late",
            lambda: now() - hit.seen_at >= by_s or hit.undeliverable is not None,
            deadline_s=by_s + 10,
        )
        held_s = now() - hit.seen_at
        missing = not committed(context, seen.query, seen.batch)
        self._put.rule.release()
        evidence = (
            f"{describe_put(hit.frame)} was held for {held_s:.3f} s, commits/{seen.batch} was "
            f"{'missing' if missing else 'there'} at the end"
        )
        try:
            answer = self._put.rule.wait_for_answer(hit, ANSWER_S)
        except WaitTimeout as never:
            return missed(evidence, never.message)
        status = answer.facts["status"]
        if held_s < by_s or not missing or status != 200 or "error" in answer.facts:
            return missed(evidence, f"the store then answered {status} {answer.facts.get('error', '')}".rstrip())
        return proven(f"{evidence}; the store then answered {status}", wait_for_commit(context, seen))
