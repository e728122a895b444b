"""Lost acknowledgement of a consumer: it is sent into a connection that breaks, and never arrives. The broker gives the message out again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from onceproof.consumers.faults import AtItsStep, Scene, StepDone, consumer_faults
from onceproof.consumers.routes import HasRoads, Road
from onceproof.consumers.trace import Move
from onceproof.faults.contract import Placement, Proof, SpecProblem
from onceproof.instruments.proxy.rules import Action, Condition, Hit, Rule
from onceproof.scenario.model import WORKER, ConsumerFaultSpec, ConsumersSpec, Scenario, consumers_of

#: The request that a member of a group acknowledges with; in a transaction it is the other.
_KINDS = ("OffsetCommit", "TxnOffsetCommit")
#: The step before an acknowledgement, by ``acknowledge``.
_BEFORE = {"after-effect": "effect", "before-effect": "take", "with-effect": "effect"}
_OVER = {"lost", "acknowledge", "crash", "end"}
#: On AMQP: what the broker does not answer is sent and then let go by, so only what follows tells that it is over.
_OVER_ON_AMQP = {"lost", "commit", "take", "crash", "end"}


class LostAckSpec(ConsumerFaultSpec):
    fault: Literal["lost-ack"]
    lost: Literal["request", "answer"] = Field(
        "request",
        description="the acknowledgement on its way to the broker, or (AMQP, commit) the broker's answer to it",
    )


@consumer_faults.register("lost-ack")
class LostAck(AtItsStep):
    """Kafka's client tries again by itself, and each try is lost as well, until it gives up: one try lost shows nothing.
    On AMQP there is one try: with its connection the delivery is gone that it was about.

    The consumer lives, and goes on from what the broker has.
    """

    Spec: ClassVar[type[ConsumerFaultSpec]] = LostAckSpec
    about: ClassVar[str] = "a consumer's acknowledgement is sent, its connection breaks, and it never arrives"

    def __init__(self, spec: LostAckSpec) -> None:
        self._spec = spec
        self._rules = [Rule(Condition(kind), "drop-request", "reset", times=None, name="lost-ack") for kind in _KINDS]
        self._road: Road | None = None
        """The consumer's own, on AMQP."""

    @classmethod
    def reads_frames(cls, spec: LostAckSpec) -> bool:
        return True

    @classmethod
    def problems(cls, spec: LostAckSpec, scenario: Scenario) -> list[SpecProblem]:
        consumers = consumers_of(scenario)
        if spec.lost == "answer" and (consumers.broker, consumers.acknowledge) != ("amqp", "with-effect"):
            message = "the answer that can be lost here is that to a commit of AMQP: basic.ack has none"
            return [SpecProblem(("lost",), message, "use lost: request, or broker: amqp with acknowledge: with-effect")]
        if consumers.broker == "amqp":
            return _problems_on_amqp(spec, scenario, consumers)
        if consumers.broker != "kafka-group":
            message = f"an acknowledgement is stopped on its way to a Kafka group or an AMQP broker, and these consumers have {consumers.broker}"
            return [SpecProblem(("fault",), message, "use crash after effect: what was not acknowledged comes again")]
        if consumers.acknowledge == "with-effect" and any(o.table is not None for o in scenario.outputs.values()):
            message = "these consumers keep their positions in Postgres and send no acknowledgement"
            return [SpecProblem(("fault",), message, "use crash, or an output that is a topic")]
        if consumers.retry is not None and spec.target == consumers.retry.consumer:
            message = f"{spec.target} takes from the retry topic, and what the broker has is known of the input's acknowledgements alone"
            return [SpecProblem(("target",), message, "name a consumer of the input, or use crash")]
        before = _BEFORE[consumers.acknowledge]
        if scenario.pipeline.command == WORKER and spec.at.after != before:
            message = f"after {spec.at.after} no acknowledgement comes next, with acknowledge: {consumers.acknowledge}"
            return [SpecProblem(("at", "after"), message, f"use {before}")]
        return []

    @classmethod
    def placement(cls, spec: LostAckSpec, scenario: Scenario) -> Placement:
        proof = f"the frames that were stopped, that {spec.target} got the error, and that it was given message {spec.at.message} again"
        why = "the rule is armed before the consumer may acknowledge, and no other consumer moves meanwhile"
        return Placement("exact", "gate of the consumers, and protocol proxy", why, proof)

    def strike(self, scene: Scene, seen: StepDone) -> None:
        if isinstance(scene.queues, HasRoads):
            action: Action = "drop-request" if self._spec.lost == "request" else "drop-answer"
            frame = "tx.commit" if self._spec.at.after == "acknowledge" else "basic.ack"
            self._rules = [Rule(Condition(frame), action, "reset", name="lost-ack")]
            self._road = scene.queues.road(self._spec.target)
            self._road.arm(self._rules[0])
            return
        assert scene.queues.frames is not None, "the run has started the proxy: this fault reads frames"
        for rule in self._rules:
            scene.queues.frames.arm("kafka", rule)

    def is_over(self, since: Sequence[Move]) -> bool:
        over = _OVER if self._road is None else _OVER_ON_AMQP
        return any(move.consumer == self._spec.target and move.kind in over for move in since)

    def heal(self, scene: Scene) -> None:
        if self._road is not None:
            self._road.disarm(self._rules[0])
        elif scene.queues.frames is not None:
            for rule in self._rules:
                scene.queues.frames.disarm("kafka", rule)

    def arrived(self) -> bool | None:
        """Implements `onceproof.consumers.routes.KnowsArrival`."""
        hits = [hit for rule in self._rules for hit in rule.hits]
        # Not `Hit.answer`: that is there a moment after the client was cut off.
        return any(hit.answered_at is not None for hit in hits) if hits else None

    def prove(self, scene: Scene, seen: StepDone) -> Proof:
        after = seen.after
        target, message = self._spec.target, self._spec.at.message
        hits = [hit for rule in self._rules for hit in rule.hits]
        if not hits:
            return Proof(False, (f"{target} sent no acknowledgement that could be lost: {self._rules[0].nearest()}",))
        if self._spec.lost == "answer":
            return self._prove_answer(hits[0], after)
        tries = "once" if len(hits) == 1 else f"{len(hits)} times"
        told = [f"{target} sent the {hits[0].frame.kind} of message {message} {tries}; none of them reached the broker"]
        if any(hit.delivered_at is not None for hit in hits):
            return Proof(False, (*told, "yet one was delivered"))
        lost = next((m for m in after if m.consumer == target and m.kind == "lost"), None)
        if lost is None:
            return Proof(False, (*told, f"{target} did not notice that it was lost"))
        told.append(f"at tick {lost.tick} {target} got the error, and began again from what the broker has")
        since = after[after.index(lost) + 1 :]
        of_group = [m for m in since if m.group == lost.group]  # another group has a copy of its own
        again = next((m for m in of_group if m.kind == "take" and m.message == message), None)
        if again is None:
            return Proof(False, (*told, f"message {message} was never given out again"))
        return Proof(True, (*told, f"the broker gave it to {again.consumer} at tick {again.tick} again"))

    def _prove_answer(self, hit: Hit, after: Sequence[Move]) -> Proof:
        """The broker had it, so the message must not come again."""
        target, message = self._spec.target, self._spec.at.message
        if hit.answered_at is None:
            return Proof(False, (f"the broker did not answer the {hit.frame.kind} of message {message}",))
        told = [
            f"the broker answered the {hit.frame.kind} of message {message}, and {target} was cut off before it heard"
        ]
        lost = next((m for m in after if m.consumer == target and m.kind == "lost"), None)
        if lost is None:
            return Proof(False, (*told, f"{target} did not notice that the answer was lost"))
        told.append(f"at tick {lost.tick} {target} got the error, and began again from what the broker has")
        again = next((m for m in after[after.index(lost) + 1 :] if m.kind == "take" and m.message == message), None)
        if again is not None:
            return Proof(False, (*told, f"yet the broker gave it to {again.consumer} at tick {again.tick} again"))
        return Proof(True, (*told, f"the broker did not give message {message} out again"))


def _problems_on_amqp(spec: LostAckSpec, scenario: Scenario, consumers: ConsumersSpec) -> list[SpecProblem]:
    before = [_BEFORE[consumers.acknowledge]]
    if consumers.acknowledge == "with-effect":  # a commit comes after it, and is what counts
        before = ["acknowledge"] if spec.lost == "answer" else ["effect", "acknowledge"]
    if scenario.pipeline.command != WORKER or spec.at.after in before:
        return []
    lost = "no acknowledgement comes next" if spec.lost == "request" else "no commit comes next"
    message = f"after {spec.at.after} {lost}, with acknowledge: {consumers.acknowledge}"
    return [SpecProblem(("at", "after"), message, f"use {' or '.join(before)}")]
