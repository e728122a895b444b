"""Reject: the output really refuses the effect of a message, because Kafka accepts no record into its topic for that time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from onceproof.consumers.faults import AtItsStep, ConsumerFaultContext, StepDone, consumer_faults
from onceproof.consumers.trace import TraceEvent
from onceproof.faults.contract import Placement, Proof, SpecProblem
from onceproof.scenario.model import ConsumerFaultSpec, Scenario, consumers_of


class RejectSpec(ConsumerFaultSpec):
    fault: Literal["reject"]
    times: PositiveInt = Field(1, description="refusals until the output takes effects again")


@consumer_faults.register("reject")
class Reject(AtItsStep):
    """The output's topic gets ``max.message.bytes`` 1, so that its broker answers MSG_SIZE_TOO_LARGE, which no client retries.

    It stands for anything that a downstream system may refuse for a while: a quota, a lock, a service that is away.
    """

    Spec: ClassVar[type[ConsumerFaultSpec]] = RejectSpec
    about: ClassVar[str] = "the output refuses the effect of a message, a given number of times"

    def __init__(self, spec: RejectSpec) -> None:
        self._spec = spec

    @classmethod
    def problems(cls, spec: RejectSpec, scenario: Scenario) -> list[SpecProblem]:
        consumers = consumers_of(scenario)
        found = []
        if consumers.broker == "amqp":
            message = "a queue of an AMQP broker refuses nothing: reject needs a Kafka topic as output"
            found.append(SpecProblem(("fault",), message, "use broker: kafka-group or share-group"))
        if any(output.table is not None for output in scenario.outputs.values()):
            message = "only a topic can be made to refuse records, and an output of these consumers is a table"
            found.append(SpecProblem(("fault",), message, "use an output that is a topic, or poison"))
        if scenario.stack.kafka.brokers > 1:
            message = "with several brokers, the one asked may have the new setting before the leader of the output's partition"
            found.append(SpecProblem(("fault",), message, "stack: kafka: {brokers: 1}"))
        if consumers.acknowledge == "with-effect":
            message = "a refused record ends its transaction, and the shipped consumer does not continue after that"
            found.append(SpecProblem(("fault",), message, "use acknowledge: after-effect"))
        if spec.at.after == "effect" or (spec.at.after == "acknowledge" and consumers.acknowledge != "before-effect"):
            message = f"after {spec.at.after} the effect of message {spec.at.message} exists already: nothing is left to refuse"
            found.append(SpecProblem(("at", "after"), message, "use take"))
        return found

    @classmethod
    def placement(cls, spec: RejectSpec, scenario: Scenario) -> Placement:
        proof = f"{spec.target} got the broker's refusal of the effect of message {spec.at.message}"
        why = "consumers ask before each step, and the effect is allowed once the broker has the new setting"
        return Placement("exact", "gate of the consumers", why, proof)

    def strike(self, context: ConsumerFaultContext, seen: StepDone) -> None:
        context.queues.refuse(context.layout.output_of[self._spec.target], True)

    def is_over(self, since: Sequence[TraceEvent]) -> bool:
        return len(self._refusals(since)) >= self._spec.times

    def heal(self, context: ConsumerFaultContext) -> None:
        context.queues.refuse(context.layout.output_of[self._spec.target], False)

    def _refusals(self, since: Sequence[TraceEvent]) -> list[TraceEvent]:
        return [event for event in since if event.kind == "refuse" and event.message == self._spec.at.message]

    def prove(self, context: ConsumerFaultContext, seen: StepDone) -> Proof:
        after = seen.after
        refusals = self._refusals(after)
        message = self._spec.at.message
        evidence = [
            f"the broker refused the effect of message {message} to {event.consumer} at tick {event.tick}"
            for event in refusals
        ]
        if not refusals:
            return Proof(False, (f"no effect of message {message} was refused",))
        last = refusals[-1]
        later = [e for e in after[after.index(last) + 1 :] if e.group == last.group]  # another group has its own copy
        again = next((e for e in later if e.kind == "effect" and e.message == message), None)
        evidence.append(
            f"{again.consumer} did the effect at tick {again.tick}"
            if again is not None
            else "the effect was never done after that"
        )
        return Proof(len(refusals) >= self._spec.times, tuple(evidence))
