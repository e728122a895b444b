"""Lost acknowledgement of a consumer: it is sent and never arrives, because its connection breaks. The message comes again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from onceproof.consumers.faults import AtItsStep, ConsumerFaultContext, StepDone, consumer_faults
from onceproof.consumers.routes import HasRoutes, Route
from onceproof.consumers.trace import TraceEvent
from onceproof.faults.contract import Placement, Proof, SpecProblem
from onceproof.instruments.proxy.rules import Action, Condition, Rule
from onceproof.scenario.consumers import ConsumersSpec
from onceproof.scenario.model import WORKER, ConsumerFaultSpec, Scenario, consumers_of

#: The request with which a group member acknowledges: the second one in a transaction.
_KINDS = ("OffsetCommit", "TxnOffsetCommit")
#: The step before an acknowledgement, by ``acknowledge``.
_BEFORE = {"after-effect": "effect", "before-effect": "take", "with-effect": "effect"}
_OVER = {"lost", "acknowledge", "crash", "end"}
#: On AMQP a basic.ack has no answer, so only the consumer's next event shows that the fault is over.
_OVER_ON_AMQP = {"lost", "commit", "take", "crash", "end"}


class LostAckSpec(ConsumerFaultSpec):
    fault: Literal["lost-ack"]
    lost: Literal["request", "answer"] = Field(
        "request",
        description="the acknowledgement on its way to the broker, or (AMQP, commit) the broker's answer to it",
    )


@consumer_faults.register("lost-ack")
class LostAck(AtItsStep):
    """The connection breaks with the acknowledgement on it.

    Kafka's client retries by itself, so each try is lost until it gives up: losing one try would show nothing. On AMQP there is
    one try: the delivery that it acknowledges ends with its connection. The consumer lives, and continues from what the broker
    has.
    """

    Spec: ClassVar[type[ConsumerFaultSpec]] = LostAckSpec
    about: ClassVar[str] = "a consumer's acknowledgement is sent, its connection breaks, and it never arrives"

    def __init__(self, spec: LostAckSpec) -> None:
        self._spec = spec
        self._rules = [Rule(Condition(kind), "drop-request", "reset", times=None, name="lost-ack") for kind in _KINDS]
        self._route: Route | None = None
        """The consumer's own route, on AMQP."""

    @classmethod
    def reads_frames(cls, spec: LostAckSpec) -> bool:
        return True

    @classmethod
    def problems(cls, spec: LostAckSpec, scenario: Scenario) -> list[SpecProblem]:
        consumers = consumers_of(scenario)
        if spec.lost == "answer" and (consumers.broker, consumers.acknowledge) != ("amqp", "with-effect"):
            message = "only the answer to an AMQP commit can be lost here: a basic.ack has no answer"
            return [SpecProblem(("lost",), message, "use lost: request, or broker: amqp with acknowledge: with-effect")]
        if consumers.broker == "amqp":
            return _problems_on_amqp(spec, scenario, consumers)
        if consumers.broker != "kafka-group":
            message = f"lost-ack needs broker: kafka-group or amqp, and these consumers use {consumers.broker}"
            return [SpecProblem(("fault",), message, "use crash after effect: an unacknowledged message comes again")]
        if consumers.acknowledge == "with-effect" and any(o.table is not None for o in scenario.outputs.values()):
            message = "these consumers keep their positions in Postgres and send no acknowledgement"
            return [SpecProblem(("fault",), message, "use crash, or an output that is a topic")]
        if consumers.retry is not None and spec.target == consumers.retry.consumer:
            message = f"{spec.target} takes from the retry topic, and onceproof can look up acknowledgements of the input only"
            return [SpecProblem(("target",), message, "name a consumer of the input, or use crash")]
        before = _BEFORE[consumers.acknowledge]
        if scenario.pipeline.command == WORKER and spec.at.after != before:
            message = f"after {spec.at.after} no acknowledgement comes next, with acknowledge: {consumers.acknowledge}"
            return [SpecProblem(("at", "after"), message, f"use {before}")]
        return []

    @classmethod
    def placement(cls, spec: LostAckSpec, scenario: Scenario) -> Placement:
        proof = f"the frames that were stopped, that {spec.target} got the error, and that it was given message {spec.at.message} again"
        why = "the rule is armed before the consumer may acknowledge, and all other consumers wait meanwhile"
        return Placement("exact", "gate of the consumers, and protocol proxy", why, proof)

    def strike(self, context: ConsumerFaultContext, seen: StepDone) -> None:
        if isinstance(context.queues, HasRoutes):
            action: Action = "drop-request" if self._spec.lost == "request" else "drop-answer"
            frame = "tx.commit" if self._spec.at.after == "acknowledge" else "basic.ack"
            self._rules = [Rule(Condition(frame), action, "reset", name="lost-ack")]
            self._route = context.queues.route(self._spec.target)
            self._route.arm(self._rules[0])
            return
        assert context.queues.frames is not None, "the run has started the proxy: this fault reads frames"
        for rule in self._rules:
            context.queues.frames.board("kafka").arm(rule)

    def is_over(self, since: Sequence[TraceEvent]) -> bool:
        over = _OVER if self._route is None else _OVER_ON_AMQP
        return any(event.consumer == self._spec.target and event.kind in over for event in since)

    def heal(self, context: ConsumerFaultContext) -> None:
        if self._route is not None:
            self._route.disarm(self._rules[0])
        elif context.queues.frames is not None:
            for rule in self._rules:
                context.queues.frames.board("kafka").disarm(rule)

    def arrived(self) -> bool | None:
        """Implements `onceproof.consumers.routes.KnowsArrival`."""
        hits = [hit for rule in self._rules for hit in rule.hits]
        # Not `Hit.answer`: that is stored a moment after the client was cut off.
        return any(hit.answered_at is not None for hit in hits) if hits else None

    def prove(self, context: ConsumerFaultContext, seen: StepDone) -> Proof:
        after = seen.after
        target, message = self._spec.target, self._spec.at.message
        hits = [hit for rule in self._rules for hit in rule.hits]
        if not hits:
            return Proof(False, (f"{target} sent no acknowledgement that could be lost: {self._rules[0].nearest()}",))
        if self._spec.lost == "answer":
            if hits[0].answered_at is None:
                return Proof(False, (f"the broker did not answer the {hits[0].frame.kind} of message {message}",))
            answered = f"the broker answered the {hits[0].frame.kind} of message {message}"
            what, evidence = "the answer", [f"{answered}, and {target} was cut off before the answer arrived"]
        else:
            tries = "once" if len(hits) == 1 else f"{len(hits)} times"
            sent = f"{target} sent the {hits[0].frame.kind} of message {message} {tries}"
            if any(hit.delivered_at is not None for hit in hits):
                return Proof(False, (f"{sent}, but one was delivered",))
            what, evidence = "it", [f"{sent}; none of them reached the broker"]
        lost = next((e for e in after if e.consumer == target and e.kind == "lost"), None)
        if lost is None:
            return Proof(False, (*evidence, f"{target} did not notice that {what} was lost"))
        evidence.append(f"at tick {lost.tick} {target} got the error, and started over from what the broker has")
        since = after[after.index(lost) + 1 :]
        of_group = [e for e in since if e.group == lost.group]  # another group has its own copy
        again = next((e for e in of_group if e.kind == "take" and e.message == message), None)
        if self._spec.lost == "answer":  # the broker had the acknowledgement, so the message must not come again
            if again is None:
                return Proof(True, (*evidence, f"the broker did not give message {message} out again"))
            return Proof(False, (*evidence, f"but the broker gave it to {again.consumer} again, at tick {again.tick}"))
        if again is None:
            return Proof(False, (*evidence, f"message {message} was never given out again"))
        return Proof(True, (*evidence, f"the broker gave it to {again.consumer} again, at tick {again.tick}"))


def _problems_on_amqp(spec: LostAckSpec, scenario: Scenario, consumers: ConsumersSpec) -> list[SpecProblem]:
    before = [_BEFORE[consumers.acknowledge]]
    if consumers.acknowledge == "with-effect":  # the commit that follows it is what counts
        before = ["acknowledge"] if spec.lost == "answer" else ["effect", "acknowledge"]
    if scenario.pipeline.command != WORKER or spec.at.after in before:
        return []
    lost = "no acknowledgement comes next" if spec.lost == "request" else "no commit comes next"
    message = f"after {spec.at.after} {lost}, with acknowledge: {consumers.acknowledge}"
    return [SpecProblem(("at", "after"), message, f"use {' or '.join(before)}")]
