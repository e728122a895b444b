"""Late request: a request that its client has given up is delivered all the same, later, over the connection left behind."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from onceproof.base.errors import WaitTimeout
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults
from onceproof.faults.evidence.item import Evidence
from onceproof.faults.frames import (
    ANSWER_S,
    HIT_S,
    FrameSpec,
    StoppedFrame,
    frame_placement,
    frame_problems,
    is_planned,
    several_queries,
    wait_for_commit,
    which,
)
from onceproof.faults.placement import point_problems
from onceproof.instruments.proxy.frames import Frame
from onceproof.instruments.proxy.rules import Condition, Hit, Rule
from onceproof.scenario.model import At, FaultSpec, Scenario
from onceproof.scenario.points import Point


class LateAt(At):
    """The batch whose request is late."""

    point: Point = Field(Point.COMMIT_LOST, description="the place in the batch's commit protocol")


class LateRequestSpec(FaultSpec):
    fault: Literal["late-request"]
    target: Literal["postgres", "kafka"]
    at: LateAt
    frame: FrameSpec = Field(default_factory=FrameSpec, description="which request is late (default: the commit)")
    deliver_before: FrameSpec | None = Field(
        None,
        description="delivered right before this later request (Postgres: default the first statement that follows)",
    )


@faults.register("late-request")
class LateRequest:
    """The client is cut off at once and comes back; its old request arrives when it is on to the next thing.

    For Kafka's EndTxn this is KAFKA-17754: where a producer is reused, an old abort ends the next transaction of its epoch
    (Jepsen, Bufstream 0.1.0). For Postgres, a COMMIT that everybody has given up, with its locks held until then.
    """

    Spec: ClassVar[type[FaultSpec]] = LateRequestSpec
    about: ClassVar[str] = "a request arrives after its client was cut off and has gone on"

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
            mend = "for example deliver_before: {kind: statement, sql: my_table}"
            problems.append(SpecProblem((), "which query's next statement? deliver_before is missing", mend))
        elif spec.target == "kafka":
            mend = "for example deliver_before: {kind: AddPartitionsToTxn, topic: my-topic}"
            problems.append(SpecProblem((), "when is it to arrive? deliver_before is missing", mend))
        return problems

    @classmethod
    def placement(cls, spec: LateRequestSpec, scenario: Scenario) -> Placement:
        return frame_placement(
            spec.at.point, "the service's answer to the late request, given before its client's next step", scenario
        )

    def matches(self, seen: Occurrence) -> bool:
        return is_planned(seen)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self._late.arm(context, seen, self._next)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        hit = self._late.found(context, seen)
        if isinstance(hit, Proof):
            return hit
        words: list[str | Evidence] = [
            f"{which(hit.frame)} was stopped by {hit.proxy} in batch {seen.batch}, and its client cut off"
        ]
        try:
            following = self._next.wait_for_hit(HIT_S)
        except WaitTimeout as never:
            return Proof(False, (*words, never.message))
        self._late.rule.release()
        answer = self._late.rule.wait_for_answer(hit, ANSWER_S)
        assert hit.delivered_at is not None
        words.append(
            f"it was delivered {hit.delivered_at - hit.seen_at:.3f} s late over the connection left behind, "
            f"while {which(following.frame)} waited"
        )
        words.append(Evidence("the service answered it", detail=_said(hit)))
        became = self._late.became(context)
        if became is not None:
            words.append(f"pg_xact_status of transaction {self._late.xid}: {became}")
        self.heal(context)
        words.append(wait_for_commit(context, seen))
        return Proof(answer is hit.answer, tuple(words))

    def heal(self, context: FaultContext) -> None:
        self._late.close(context)
        if context.stack.frames is not None:
            context.stack.frames.disarm(self._spec.target, self._next)

    def _follows(self, frame: Frame) -> bool:
        """Whether the late one is behind us, and this is of the same producer, or over a connection made since.

        A client of Postgres that was cut off must come back over a new connection; those that stood then are others'.
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
        # A Kafka fault without it is refused by `problems`; the spec of one must be constructible all the same.
        return Condition("statement" if spec.target == "postgres" else "AddPartitionsToTxn")
    return spec.deliver_before.condition(spec.target)


def _said(hit: Hit) -> str:
    assert hit.answer is not None
    facts = hit.answer.facts
    codes = facts.get("error_codes")
    if codes is not None:
        return "no error" if set(codes) <= {0} else f"error code {', '.join(map(str, codes))}"
    return ", ".join(facts.get("tags") or [f"error {facts.get('sqlstate')}"])
