"""Reject: the output really refuses the effect of a message: Kafka takes no record into its topic for that moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from onceproof.consumers.faults import AtItsStep, Scene, StepDone, consumer_faults
from onceproof.consumers.trace import Move
from onceproof.faults.contract import Placement, Proof, SpecProblem
from onceproof.scenario.model import ConsumerFaultSpec, Scenario, consumers_of


class RejectSpec(ConsumerFaultSpec):
    fault: Literal["reject"]
    times: PositiveInt = Field(1, description="refusals until the output takes effects again")


@consumer_faults.register("reject")
class Reject(AtItsStep):
    """The output's topic gets ``max.message.bytes`` 1, so that its broker answers MSG_SIZE_TOO_LARGE, which no client tries again.

    It stands for whatever a downstream system may refuse for a while: a quota, a lock, a service that is away.
    """

    Spec: ClassVar[type[ConsumerFaultSpec]] = RejectSpec
    about: ClassVar[str] = "the output refuses the effect of a message, so many times"

    def __init__(self, spec: RejectSpec) -> None:
        self._spec = spec

    @classmethod
    def problems(cls, spec: RejectSpec, scenario: Scenario) -> list[SpecProblem]:
        consumers = consumers_of(scenario)
        found = []
        if consumers.broker == "amqp":
            message = "a queue of an AMQP broker refuses nothing: reject needs a Kafka topic as output"
            found.append(SpecProblem(("fault",), message, "use broker: kafka-group or share-group"))
        if scenario.stack.kafka.brokers > 1:
            message = (
                "whichever broker is asked may have the new setting before the one that leads the output's partition"
            )
            found.append(SpecProblem(("fault",), message, "stack: kafka: {brokers: 1}"))
        if consumers.acknowledge == "with-effect":
            message = (
                "a record that is refused ends its transaction, which the consumer that is shipped does not go on from"
            )
            found.append(SpecProblem(("fault",), message, "use acknowledge: after-effect"))
        if spec.at.after == "effect" or (spec.at.after == "acknowledge" and _effect_first(scenario)):
            message = (
                f"after {spec.at.after} the effect of message {spec.at.message} is there: nothing is left to be refused"
            )
            found.append(SpecProblem(("at", "after"), message, "use take"))
        return found

    @classmethod
    def placement(cls, spec: RejectSpec, scenario: Scenario) -> Placement:
        proof = f"{spec.target} heard from the broker that the effect of message {spec.at.message} is refused"
        why = "consumers ask before each step, and the effect is let happen once the broker has the new setting"
        return Placement("exact", "gate of the consumers", why, proof)

    def strike(self, scene: Scene, seen: StepDone) -> None:
        scene.queues.refuse(scene.layout.output_of[self._spec.target], True)

    def is_over(self, since: Sequence[Move]) -> bool:
        return len(self._refusals(since)) >= self._spec.times

    def heal(self, scene: Scene) -> None:
        scene.queues.refuse(scene.layout.output_of[self._spec.target], False)

    def _refusals(self, since: Sequence[Move]) -> list[Move]:
        return [move for move in since if move.kind == "refuse" and move.message == self._spec.at.message]

    def prove(self, scene: Scene, seen: StepDone) -> Proof:
        after = seen.after
        refusals = self._refusals(after)
        message = self._spec.at.message
        told = [
            f"the broker refused the effect of message {message} to {move.consumer} at tick {move.tick}"
            for move in refusals
        ]
        if not refusals:
            return Proof(False, (f"no effect of message {message} was refused",))
        last = refusals[-1]
        later = [m for m in after[after.index(last) + 1 :] if m.group == last.group]  # another has a copy of its own
        again = next((m for m in later if m.kind == "effect" and m.message == message), None)
        told.append(
            f"it was done at tick {again.tick} by {again.consumer}"
            if again is not None
            else "it was never done after that"
        )
        return Proof(len(refusals) >= self._spec.times, tuple(told))


def _effect_first(scenario: Scenario) -> bool:
    consumers = consumers_of(scenario)
    return consumers.acknowledge != "before-effect"
