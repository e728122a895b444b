"""Slow: a consumer works on a message longer than its group waits. The broker gives the message to another, and both finish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from onceproof.consumers.brokers.contract import Locks
from onceproof.consumers.faults import AtItsStep, ConsumerFaultContext, StepDone, consumer_faults, only_after
from onceproof.consumers.trace import TraceEvent
from onceproof.faults.contract import Placement, Proof, SpecProblem
from onceproof.scenario.consumers import ConsumersSpec
from onceproof.scenario.model import ConsumerFaultSpec, Scenario, consumers_of


class SlowSpec(ConsumerFaultSpec):
    fault: Literal["slow"]


@consumer_faults.register("slow")
class Slow(AtItsStep):
    """Nothing is killed or cut: the consumer is held at its next step until the broker has given its message to another.

    In a share group the lock of the record ends (KIP-932, ``group.share.record.lock.duration.ms``). In a consumer group
    ``max.poll.interval.ms`` passes without a poll, its client leaves, and its partitions are assigned to others (KIP-62). The
    fault ends with the delivery to another consumer, not after a guessed number of seconds.
    """

    Spec: ClassVar[type[ConsumerFaultSpec]] = SlowSpec
    about: ClassVar[str] = "a consumer works on a message until the broker has given it to another as well"

    def __init__(self, spec: SlowSpec) -> None:
        self._spec = spec

    @classmethod
    def problems(cls, spec: SlowSpec, scenario: Scenario) -> list[SpecProblem]:
        consumers = consumers_of(scenario)
        found = []
        if consumers.broker == "amqp":
            message = "an AMQP broker waits for a consumer as long as its connection lives"
            found.append(SpecProblem(("fault",), message, "use broker: share-group or kafka-group, or the fault crash"))
        if consumers.broker == "kafka-group" and consumers.static:
            message = f"{spec.target} is a static member of its group: no other member takes over its messages"
            found.append(SpecProblem(("fault",), message, "pipeline: consumers: static: false"))
        if spec.target in consumers.names and not _others(consumers, spec.target):
            message = f"{spec.target} is alone: the broker could give message {spec.at.message} to no other consumer"
            found.append(SpecProblem(("target",), message, "name another consumer of the same group under names"))
        when = f"{spec.target} is slow at its work, which begins when it has taken message {spec.at.message}"
        found += only_after(spec, "take", when)
        also = next((f for f in scenario.faults(ConsumerFaultSpec) if f is not spec and _same_place(f, spec)), None)
        if also is not None:
            message = f"{also.fault} strikes {spec.target} over message {spec.at.message} as well, which is another consumer's by then"
            found.append(SpecProblem(("at", "message"), message, "place one of the two at another message"))
        return found

    @classmethod
    def placement(cls, spec: SlowSpec, scenario: Scenario) -> Placement:
        proof = f"that another consumer was given message {spec.at.message} while {spec.target} had it, and what {spec.target} did then"
        why = "the consumer is held at its next step until the broker has given the message out again"
        return Placement("exact", "gate of the consumers", why, proof)

    def before_publish(self, context: ConsumerFaultContext) -> None:
        self._lock_briefly(context, True)

    def after_take(self, context: ConsumerFaultContext) -> None:
        self._lock_briefly(context, False)  # for messages given out from now on; the lock of this one stays short

    def strike(self, context: ConsumerFaultContext, seen: StepDone) -> None:
        """Does nothing: the executor holds the consumer at its step."""

    def _lock_briefly(self, context: ConsumerFaultContext, briefly: bool) -> None:
        if isinstance(context.queues, Locks):
            context.queues.lock_briefly(context.layout.group_of[self._spec.target], briefly)

    def is_over(self, since: Sequence[TraceEvent]) -> bool:
        return any(event.kind == "lapse" and event.consumer == self._spec.target for event in since)

    def prove(self, context: ConsumerFaultContext, seen: StepDone) -> Proof:
        before, after = seen.before, seen.after
        target, message = self._spec.target, self._spec.at.message
        taken = next(e for e in reversed(before) if e.kind == "take" and e.consumer == target)
        evidence = [f"{target} took message {message} from {taken.queue} at tick {taken.tick} and worked on it"]
        takes = [e for e in after if (e.kind, e.message, e.group) == ("take", message, taken.group)]
        again = next((e for e in takes if e.consumer != target), None)
        if again is None:
            return Proof(False, (*evidence, f"the broker gave message {message} to no other consumer meanwhile"))
        mark = " for the second time" if again.redelivered else ""
        evidence.append(
            f"the broker gave it{mark} to {again.consumer} at tick {again.tick}, while {target} lived and had it"
        )
        late = [e for e in after[after.index(again) :] if e.consumer == target and e.message == message]
        effect = next((e for e in late if e.kind == "effect"), None)
        done = f"wrote its effect at tick {effect.tick}" if effect is not None else "did not write its effect"
        evidence.append(f"{target} went on and {done}")
        answer = next((e for e in late if e.kind in (*_ANSWERS, "lost")), None)
        if answer is None:
            return Proof(False, (*evidence, f"the broker's answer to {target}'s acknowledgement was not seen"))
        if answer.kind == "lost":
            return Proof(False, (*evidence, f"its step at tick {answer.tick} got no answer from the broker"))
        return Proof(True, (*evidence, _ANSWERS[answer.kind]))


#: The broker's answer, if any, to the late acknowledgement of a message that had been given to another consumer.
_ANSWERS = {
    "acknowledge": "the broker answered its late acknowledgement without an error",
    "fenced": "the broker refused its late acknowledgement: the message belonged to another consumer",
}


def _same_place(one: ConsumerFaultSpec, other: ConsumerFaultSpec) -> bool:
    return one.at.message == other.at.message and one.target == other.target


def _others(consumers: ConsumersSpec, target: str) -> list[str]:
    """The other consumers that take from the same queues as the target."""
    group = next((names for names in consumers.groups.values() if target in names), consumers.names)
    apart = consumers.retry.consumer if consumers.retry is not None else None
    return [name for name in group if name not in (target, apart)]
