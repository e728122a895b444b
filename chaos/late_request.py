"""Late request: a request that its client has given up is delivered later nevertheless, over the client's old connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from onceproof.base.errors import WaitTimeout
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed
from onceproof.faults.evidence.item import Evidence
from onceproof.faults.frames import (
    ANSWER_S,
    HIT_S,
    AtItsFrame,
    StoppedFrame,
    frame_problems,
    placement_at_frame,
    several_queries,
    wait_for_commit,
)
from onceproof.faults.job import Job, Try
from onceproof.faults.placement import point_problems
from onceproof.instruments.proxy.frames import Frame
from onceproof.instruments.proxy.rules import Rule
from onceproof.scenario.model import At, FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stores.frames import FrameSpec, Service, frames_of


class LateAt(At):
    """The position of the late request."""

    point: Point = Field(Point.COMMIT_LOST, description="the place in the batch's commit protocol")


class LateRequestSpec(FaultSpec):
    fault: Literal["late-request"]
    target: Service
    at: LateAt
    frame: FrameSpec = Field(default_factory=FrameSpec, description="which request is late (default: the commit)")
    deliver_before: FrameSpec | None = Field(
        None,
        description="the later request right before which it is delivered (default for Postgres: the next statement)",
    )


@faults.register("late-request")
class LateRequest(AtItsFrame):
    """The client is cut off at once and reconnects; its old request is delivered right before a later request of the client.

    For Kafka's EndTxn this is KAFKA-17754: where a producer is reused, an old abort ends the next transaction of its epoch
    (Jepsen, Bufstream 0.1.0). For Postgres it is a COMMIT that the client has given up, with its locks held until then.
    """

    Spec: ClassVar[type[FaultSpec]] = LateRequestSpec
    about: ClassVar[str] = "a request arrives after its client was cut off and has reconnected"

    def __init__(self, spec: LateRequestSpec) -> None:
        self._spec = spec
        self._late = StoppedFrame(spec.frame, spec.target, "late", hold=False)
        # `problems` refuses a fault that needs `deliver_before` and lacks it, but it must still be constructible.
        following = spec.deliver_before or FrameSpec(kind=frames_of(spec.target).following.kind)
        condition = following.condition(spec.target)
        self._next = Rule(condition, "park", nth=following.nth, name="deliver-before", proceed=self._follows)

    @classmethod
    def problems(cls, spec: LateRequestSpec, scenario: Scenario) -> list[SpecProblem]:
        query = spec.at.query
        problems = point_problems(spec, (Point.COMMIT_LOST,))
        problems += frame_problems(spec.frame, spec.target, scenario, query=query)
        if spec.deliver_before is not None:
            return problems + frame_problems(spec.deliver_before, spec.target, scenario, "deliver_before", query=query)
        usual = frames_of(spec.target).following
        if usual.suffices and not several_queries(scenario, query):
            return problems
        return [*problems, SpecProblem((), usual.missing, usual.hint)]

    @classmethod
    def more_tries(cls, job: Job) -> Iterator[Try]:
        """Each commit after which the next request of the same client is known without being named."""
        for sink in job.commits:
            if frames_of(sink.target).following.suffices:
                settings = {"target": sink.target, "frame": dict(sink.frame)}
                yield Try(Point.COMMIT_LOST, settings, job.at_query(sink.query), words=sink.words)

    @classmethod
    def placement(cls, spec: LateRequestSpec, scenario: Scenario) -> Placement:
        proof = "the service's answer to the late request, given before the client's later request"
        return placement_at_frame(spec.at.point, proof, scenario)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self._late.arm(context, seen, self._next)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        hit = self._late.wait_for_frame(context, seen)
        if isinstance(hit, Proof):
            return hit
        evidence: list[str | Evidence] = [
            f"{self._late.store.describe(hit.frame)} was stopped by {hit.proxy} in batch {seen.batch}, and its client was cut off"
        ]
        try:
            following = self._next.wait_for_hit(HIT_S)
        except WaitTimeout as never:
            return missed(*evidence, never.message)
        self._late.rule.release()
        answer = self._late.rule.wait_for_answer(hit, ANSWER_S)
        assert hit.delivered_at is not None
        evidence.append(
            f"it was delivered {hit.delivered_at - hit.seen_at:.3f} s late over the client's old connection, "
            f"while {self._late.store.describe(following.frame)} was held"
        )
        evidence.append(Evidence("the service answered it", detail=self._late.store.describe_answer(answer.facts)))
        outcome = self._late.wait_for_outcome(context)
        if outcome is not None:
            evidence.append(f"pg_xact_status of transaction {self._late.xid}: {outcome}")
        self.heal(context)
        evidence.append(wait_for_commit(context, seen))
        return Proof(answer is hit.answer, tuple(evidence))

    def heal(self, context: FaultContext) -> None:
        self._late.close(context)
        context.board(self._spec.target).disarm(self._next)

    def _follows(self, frame: Frame) -> bool:
        """Whether the late request was stopped before, and this frame belongs to the same client."""
        hits = self._late.rule.hits
        return bool(hits) and self._late.store.same_client(hits[0], frame)
