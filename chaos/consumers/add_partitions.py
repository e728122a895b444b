"""Add partitions: a topic is given more partitions while consumers read it or write to it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from onceproof.base.words import times
from onceproof.consumers.brokers.contract import Grows
from onceproof.consumers.faults import AtItsStep, ConsumerFaultContext, StepDone, consumer_faults
from onceproof.faults.contract import Placement, Proof, SpecProblem, missed, proven
from onceproof.scenario.model import WORKER, ConsumerFaultSpec, Scenario, consumers_of


class AddPartitionsSpec(ConsumerFaultSpec):
    fault: Literal["add-partitions"]
    topic: str = Field(description="the topic that is given more partitions: the input's, or that of an output")
    to: Annotated[int, Field(ge=2, le=100)] = Field(description="how many partitions it has then")


@consumer_faults.register("add-partitions")
class AddPartitions(AtItsStep):
    """An administrator adds partitions (``kafka-topics --alter --partitions``). Nothing is stopped, and no record is moved.

    From then on the harness's producer sends each message to the partition of its key among all of them, as any producer does that
    asks the broker. All members of the group are assigned the new partitions before the next message is published.
    """

    Spec: ClassVar[type[ConsumerFaultSpec]] = AddPartitionsSpec
    about: ClassVar[str] = "the input's topic, or that of an output, is given more partitions"

    def __init__(self, spec: AddPartitionsSpec) -> None:
        self._spec = spec
        self._reported: tuple[int, int] | None = None
        self._is_input = False

    @classmethod
    def problems(cls, spec: AddPartitionsSpec, scenario: Scenario) -> list[SpecProblem]:
        consumers = consumers_of(scenario)
        if consumers.broker != "kafka-group" or not consumers.static or len(consumers.groups) > 1:
            message = "add-partitions needs a topic of Kafka, and members that keep their place in one consumer group"
            return [SpecProblem(("fault",), message, "use broker: kafka-group, one group, without static: false")]
        source = scenario.input[0]
        topics = {source.topic: source.partitions}
        prepared = scenario.pipeline.prepare.topics
        for output in scenario.outputs.values():
            if output.topic is not None:
                topics[output.topic] = prepared[output.topic].partitions if output.topic in prepared else 1
        if spec.topic not in topics:
            return [
                SpecProblem(
                    ("topic",), f"{spec.topic!r} is not a topic of this scenario", f"one of {', '.join(topics)}"
                )
            ]
        found = []
        if spec.to <= topics[spec.topic]:
            message = f"{spec.topic!r} has {topics[spec.topic]} partitions from the start, so none would be added"
            found.append(SpecProblem(("to",), message, f"use {topics[spec.topic] + 1} or more"))
        if spec.topic == source.topic and scenario.pipeline.command == WORKER:
            message = "the shipped consumer is written for the partitions that its group assigns it at the start"
            found.append(SpecProblem(("topic",), message, "name a command of your own, or the topic of an output"))
        return found

    @classmethod
    def placement(cls, spec: AddPartitionsSpec, scenario: Scenario) -> Placement:
        proof = f"how many partitions the broker reported for {spec.topic} before and after, and that a later message went there"
        why = "all consumers wait at their next step until the broker has the new partitions"
        return Placement("exact", "gate of the consumers", why, proof)

    @classmethod
    def partitions_of(cls, spec: AddPartitionsSpec, topic: str) -> int | None:
        """Implements `onceproof.consumers.routes.AddsPartitions`."""
        return spec.to if spec.topic == topic else None

    def strike(self, context: ConsumerFaultContext, seen: StepDone) -> None:
        assert isinstance(context.queues, Grows), "validated: topics of Kafka"
        self._is_input = self._spec.topic == context.layout.topic
        self._reported = context.queues.grow(self._spec.topic, self._spec.to)

    def added(self) -> int | None:
        """Implements `onceproof.consumers.routes.AddsPartitions`."""
        return self._spec.to if self._is_input and self._reported is not None else None

    def prove(self, context: ConsumerFaultContext, seen: StepDone) -> Proof:
        assert self._reported is not None, "it struck"
        before, after = self._reported
        topic = self._spec.topic
        evidence = [f"the broker reported {times(before, 'partition')} of {topic} before, and {after} after"]
        if after <= before:
            return missed(*evidence, "none was added")
        if self._is_input:
            old = {e.queue for e in seen.before if e.kind == "publish"}
            new = [e for e in seen.after if e.kind == "publish" and e.queue not in old]
            if not new:
                return missed(*evidence, "no message went to a partition that had had none before")
            evidence.append(f"message {new[0].message} was published to {new[0].queue} at tick {new[0].tick}")
            taken = [e for e in seen.after if e.kind == "take" and e.queue in {e.queue for e in new}]
            of = "of these partitions" if len({e.queue for e in new}) > 1 else "of this partition"
            evidence.append(f"consumers took {len(taken)} of {times(len(new), 'message')} {of}")
            return proven(*evidence)
        effects = [e for e in seen.after if e.kind == "effect"]
        if not effects:
            return missed(*evidence, "no consumer wrote an effect after that")
        return proven(*evidence, f"consumers wrote {times(len(effects), 'effect')} after that")
