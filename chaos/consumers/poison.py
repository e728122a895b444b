"""Poison: a record of the input that the output refuses every time, while it takes all others."""

from __future__ import annotations

from typing import ClassVar, Literal

from onceproof.consumers.faults import AtItsStep, ConsumerFaultContext, StepDone, consumer_faults, only_after
from onceproof.faults.contract import Placement, Proof, SpecProblem, missed, proven
from onceproof.scenario.model import ConsumerFaultSpec, Scenario, consumers_of


class PoisonSpec(ConsumerFaultSpec):
    fault: Literal["poison"]


@consumer_faults.register("poison")
class Poison(AtItsStep):
    """Nothing is broken: what is in the message is the fault, for example a value that a constraint of the table forbids.

    So ``strike`` does nothing, and there is nothing to heal. The proof is what the output did with this message and with others.
    """

    Spec: ClassVar[type[ConsumerFaultSpec]] = PoisonSpec
    about: ClassVar[str] = "a message that the output refuses every time, because of what is in it"

    def __init__(self, spec: PoisonSpec) -> None:
        self._spec = spec

    @classmethod
    def problems(cls, spec: PoisonSpec, scenario: Scenario) -> list[SpecProblem]:
        consumers = consumers_of(scenario)
        found = []
        if consumers.broker == "amqp":
            message = "a queue of an AMQP broker refuses nothing"
            found.append(SpecProblem(("fault",), message, "use broker: kafka-group, and a table as output"))
        if consumers.acknowledge == "with-effect":
            message = "a refused effect ends its transaction, and the shipped consumer does not continue after that"
            found.append(SpecProblem(("fault",), message, "use acknowledge: after-effect"))
        return [
            *found,
            *only_after(
                spec, "take", f"whether the output refuses message {spec.at.message} shows only after its take"
            ),
        ]

    @classmethod
    def placement(cls, spec: PoisonSpec, scenario: Scenario) -> Placement:
        proof = f"that the output refused message {spec.at.message} each time, and took other messages"
        return Placement("exact", "gate of the consumers", "the message itself is the fault", proof)

    def strike(self, context: ConsumerFaultContext, seen: StepDone) -> None:
        """Does nothing: what is in the message is the fault."""

    def prove(self, context: ConsumerFaultContext, seen: StepDone) -> Proof:
        number = self._spec.at.message
        # Another group has its own copy of the message, and may write it to an output that takes it.
        taken = (e for e in reversed(seen.before) if e.consumer == self._spec.target and e.kind == "take")
        group = next((e.group for e in taken), "")
        trace = [e for e in (*seen.before, *seen.after) if e.group == group]
        refused = [e for e in trace if e.kind == "refuse" and e.message == number]
        written = [e for e in trace if e.kind == "effect"]
        others = sorted({e.message for e in written if e.message != number})
        if not refused:
            return missed(f"the output never refused message {number}")
        first, last = refused[0], refused[-1]
        times = "once" if len(refused) == 1 else f"{len(refused)} times, the last time at tick {last.tick}"
        evidence = [f"the output refused message {number} to {first.consumer} at tick {first.tick}, {times}"]
        if any(e.message == number for e in written):
            return missed(*evidence, "it took the message in the end")
        if not others:
            return missed(*evidence, "it took no other message either, so the message is not what it refuses")
        evidence.append(f"it took messages {', '.join(map(str, others))}")
        aside = next((e for e in trace if e.kind == "dead-letter" and e.message == number), None)
        if aside is not None:
            evidence.append(f"{aside.consumer} put message {number} into {aside.queue} at tick {aside.tick}")
        return proven(*evidence)
