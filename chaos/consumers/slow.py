"""Slow: a consumer works longer on a message than its group waits for it. The broker gives the message to another, and both finish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from onceproof.consumers.brokers.contract import Locks
from onceproof.consumers.faults import AtItsStep, Scene, StepDone, consumer_faults
from onceproof.consumers.trace import Move
from onceproof.faults.contract import Placement, Proof, SpecProblem
from onceproof.scenario.model import ConsumerFaultSpec, ConsumersSpec, Scenario, consumers_of


class SlowSpec(ConsumerFaultSpec):
    fault: Literal["slow"]


@consumer_faults.register("slow")
class Slow(AtItsStep):
    """Nothing is killed and nothing is cut: the consumer is held at its next step until the broker has given its message away.

    In a share group the lock of the record ends (KIP-932, ``group.share.record.lock.duration.ms``); in a consumer group
    ``max.poll.interval.ms`` passes without a poll, its client leaves, and its partitions are dealt out anew (KIP-62). The
    event that ends it is the delivery to another, not a guess at seconds.
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
            message = f"{spec.target} is a static member of its group: nobody takes over what it has"
            found.append(SpecProblem(("fault",), message, "pipeline: consumers: static: false"))
        if spec.target in consumers.names and not _others(consumers, spec.target):
            message = f"{spec.target} is alone: there is nobody whom the broker could give message {spec.at.message}"
            found.append(SpecProblem(("target",), message, "name another consumer of the same group under names"))
        if spec.at.after != "take":
            message = f"{spec.target} is slow at its work, which begins when it has taken message {spec.at.message}"
            found.append(SpecProblem(("at", "after"), message, "use take"))
        also = next((f for f in scenario.faults(ConsumerFaultSpec) if f is not spec and _same_place(f, spec)), None)
        if also is not None:
            message = (
                f"{also.fault} strikes {spec.target} over message {spec.at.message} as well, which is another's by then"
            )
            found.append(SpecProblem(("at", "message"), message, "place one of the two at another message"))
        return found

    @classmethod
    def placement(cls, spec: SlowSpec, scenario: Scenario) -> Placement:
        proof = f"that another was given message {spec.at.message} while {spec.target} had it, and what {spec.target} did then"
        why = "it is held at its next step until the broker has given the message out again"
        return Placement("exact", "gate of the consumers", why, proof)

    def foresee(self, scene: Scene) -> None:
        self._lock_briefly(scene, True)

    def is_taken(self, scene: Scene) -> None:
        self._lock_briefly(scene, False)  # of what is given out from now on; the lock of this message stays as it is

    def strike(self, scene: Scene, seen: StepDone) -> None:
        """Nothing: it is not let go on."""

    def _lock_briefly(self, scene: Scene, briefly: bool) -> None:
        if isinstance(scene.queues, Locks):
            scene.queues.lock_briefly(scene.layout.group_of[self._spec.target], briefly)

    def is_over(self, since: Sequence[Move]) -> bool:
        return any(move.kind == "lapse" and move.consumer == self._spec.target for move in since)

    def prove(self, scene: Scene, seen: StepDone) -> Proof:
        before, after = seen.before, seen.after
        target, message = self._spec.target, self._spec.at.message
        taken = next(m for m in reversed(before) if m.kind == "take" and m.consumer == target)
        told = [f"{target} took message {message} from {taken.queue} at tick {taken.tick} and worked on it"]
        again = next(
            (
                m
                for m in after
                if (m.kind, m.message, m.group) == ("take", message, taken.group) and m.consumer != target
            ),
            None,
        )
        if again is None:
            return Proof(False, (*told, f"the broker gave message {message} to nobody else meanwhile"))
        mark = " for the second time" if again.redelivered else ""
        told.append(
            f"the broker gave it{mark} to {again.consumer} at tick {again.tick}, while {target} lived and had it"
        )
        late = [m for m in after[after.index(again) :] if m.consumer == target and m.message == message]
        effect = next((m for m in late if m.kind == "effect"), None)
        done = f"did its effect at tick {effect.tick}" if effect is not None else "did no effect"
        told.append(f"{target} went on and {done}")
        answer = next((m for m in late if m.kind in (*_ANSWERS, "lost")), None)
        if answer is None:
            return Proof(False, (*told, f"what the broker said to {target}'s acknowledgement was not seen"))
        if answer.kind == "lost":
            return Proof(False, (*told, f"its step at tick {answer.tick} got no answer of the broker"))
        return Proof(True, (*told, _ANSWERS[answer.kind]))


#: What the broker said, as far as it said anything, to the acknowledgement of one whose message was another's by then.
_ANSWERS = {
    "acknowledge": "the broker answered its late acknowledgement without an error",
    "fenced": "the broker refused its late acknowledgement: the message was another's",
}


def _same_place(one: ConsumerFaultSpec, other: ConsumerFaultSpec) -> bool:
    return one.at.message == other.at.message and one.target == other.target


def _others(consumers: ConsumersSpec, target: str) -> list[str]:
    """Who takes from where the target does."""
    group = next((names for names in consumers.groups.values() if target in names), consumers.names)
    apart = consumers.retry.consumer if consumers.retry is not None else None
    return [name for name in group if name not in (target, apart)]
