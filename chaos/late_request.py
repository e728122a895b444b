"""Late request: a request that its client has given up is delivered later nevertheless, over the client's old connection."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from onceproof.base.errors import WaitTimeout
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed
from onceproof.faults.evidence.item import Evidence
from onceproof.faults.frames import (
    ANSWER_S,
    HIT_S,
    FrameSpec,
    StoppedFrame,
    at_plan,
    describe_frame,
    frame_problems,
    placement_at_frame,
    several_queries,
    wait_for_commit,
)
from onceproof.faults.placement import point_problems
from onceproof.instruments.proxy.frames import Frame
from onceproof.instruments.proxy.rules import Condition, Hit, Rule
from onceproof.scenario.model import At, FaultSpec, Scenario
from onceproof.scenario.points import Point


class LateAt(At):
    """The position of the late request."""

    point: Point = Field(Point.COMMIT_LOST, description="the place in the batch's commit protocol")


class LateRequestSpec(FaultSpec):
    fault: Literal["late-request"]
    target: Literal["postgres", "kafka"]
    at: LateAt
    frame: FrameSpec = Field(default_factory=FrameSpec, description="which request is late (default: the commit)")
    deliver_before: FrameSpec | None = Field(
        None,
        description="the later request right before which it is delivered (default for Postgres: the next statement)",
    )


@faults.register("late-request")
class LateRequest:
    """The client is cut off at once and reconnects; its old request is delivered right before a later request of the client.

    For Kafka's EndTxn this is KAFKA-17754: where a producer is reused, an old abort ends the next transaction of its epoch
    (Jepsen, Bufstream 0.1.0). For Postgres it is a COMMIT that the client has given up, with its locks held until then.
    """

    Spec: ClassVar[type[FaultSpec]] = LateRequestSpec
    about: ClassVar[str] = "a request arrives after its client was cut off and has reconnected"

    def __init__(self, spec: LateRequestSpec) -> None:
        self._spec = spec
        self._late = StoppedFrame(spec.frame, spec.target, "late", hold=False)
        following = _following(spec)
        self._next = Rule(
            following,
            "park",
            nth=(spec.deliver_before or FrameSpec()).nth,
            name="deliver-before",
            proceed=self._follows,
        )

    @classmethod
    def reads_frames(cls, spec: LateRequestSpec) -> bool:
        return True

    @classmethod
    def problems(cls, spec: LateRequestSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = point_problems(spec, (Point.COMMIT_LOST,)) + frame_problems(
            spec.frame, spec.target, scenario, query=spec.at.query
        )
        if spec.deliver_before is not None:
            problems += frame_problems(
                spec.deliver_before, spec.target, scenario, "deliver_before", query=spec.at.query
            )
        elif spec.target == "postgres" and several_queries(scenario, spec.at.query):
            message = "deliver_before is missing: the statement, of which query, before which the late request arrives"
            hint = "for example deliver_before: {kind: statement, sql: my_table}"
            problems.append(SpecProblem((), message, hint))
        elif spec.target == "kafka":
            message = "deliver_before is missing: the request before which the late one arrives"
            hint = "for example deliver_before: {kind: AddPartitionsToTxn, topic: my-topic}"
            problems.append(SpecProblem((), message, hint))
        return problems

    @classmethod
    def placement(cls, spec: LateRequestSpec, scenario: Scenario) -> Placement:
        return placement_at_frame(
            spec.at.point, "the service's answer to the late request, given before the client's later request", scenario
        )

    def matches(self, seen: Occurrence) -> bool:
        return at_plan(seen)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self._late.arm(context, seen, self._next)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        hit = self._late.wait_for_frame(context, seen)
        if isinstance(hit, Proof):
            return hit
        evidence: list[str | Evidence] = [
            f"{describe_frame(hit.frame)} was stopped by {hit.proxy} in batch {seen.batch}, and its client was cut off"
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
            f"while {describe_frame(following.frame)} was held"
        )
        evidence.append(Evidence("the service answered it", detail=_answer(hit)))
        outcome = self._late.wait_for_outcome(context)
        if outcome is not None:
            evidence.append(f"pg_xact_status of transaction {self._late.xid}: {outcome}")
        self.heal(context)
        evidence.append(wait_for_commit(context, seen))
        return Proof(answer is hit.answer, tuple(evidence))

    def heal(self, context: FaultContext) -> None:
        self._late.close(context)
        if context.stack.frames is not None:
            context.stack.frames.disarm(self._spec.target, self._next)

    def _follows(self, frame: Frame) -> bool:
        """Whether the late request was stopped before, and this frame belongs to the same client.

        That is the same producer for Kafka. A Postgres client that was cut off must reconnect, so its frame comes over a
        connection made since then; older connections belong to other clients.
        """
        if not self._late.rule.hits:
            return False
        if self._spec.target == "postgres":
            cut_at = self._late.rule.hits[0].cut_at
            return cut_at is not None and frame.connected_at > cut_at
        mine = self._late.rule.hits[0].frame.facts.get("transactional_id")
        return mine is None or frame.facts.get("transactional_id") in (None, mine)


def _following(spec: LateRequestSpec) -> Condition:
    if spec.deliver_before is None:
        # `problems` refuses a Kafka fault without it, but the fault must still be constructible from such a spec.
        return Condition("statement" if spec.target == "postgres" else "AddPartitionsToTxn")
    return spec.deliver_before.condition(spec.target)


def _answer(hit: Hit) -> str:
    assert hit.answer is not None
    facts = hit.answer.facts
    codes = facts.get("error_codes")
    if codes is not None:
        return "no error" if set(codes) <= {0} else f"error code {', '.join(map(str, codes))}"
    return ", ".join(facts.get("tags") or [f"error {facts.get('sqlstate')}"])
