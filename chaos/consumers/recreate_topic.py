"""Recreate topic: the input's topic is deleted and created again while its consumer is away."""

from __future__ import annotations

from typing import ClassVar, Literal

from onceproof.consumers.brokers.contract import Recreatable, Recreated
from onceproof.consumers.faults import (
    AtItsStep,
    ConsumerFaultContext,
    StepDone,
    consumer_faults,
    only_after,
    only_sole_consumer,
)
from onceproof.faults.contract import Placement, Proof, SpecProblem, missed, proven
from onceproof.scenario.model import ConsumerFaultSpec, Scenario


class RecreateTopicSpec(ConsumerFaultSpec):
    fault: Literal["recreate-topic"]


@consumer_faults.register("recreate-topic")
class RecreateTopic(AtItsStep):
    """The consumer is ended (SIGKILL), the topic is deleted and created again under its name, and the consumer is restarted.

    The new topic has another id (KIP-516), and its offsets begin at 0. A position that is stored outside Kafka survives, and once
    the new topic has more records than the old one had, it is a valid one. Kafka deletes the offsets of a group with the topic.
    """

    Spec: ClassVar[type[ConsumerFaultSpec]] = RecreateTopicSpec
    about: ClassVar[str] = "the input's topic is deleted and created again, while its consumer is restarted"

    def __init__(self, spec: RecreateTopicSpec) -> None:
        self._spec = spec
        self._found: Recreated | None = None

    @classmethod
    def problems(cls, spec: RecreateTopicSpec, scenario: Scenario) -> list[SpecProblem]:
        why = "only consumers of a topic that acknowledge after their effects can find another topic under its name"
        why_alone = (
            "the topic has several consumers or partitions: what was not read would be lost with it for any consumer"
        )
        found = only_sole_consumer(spec, scenario, why, why_alone)
        when = f"the topic is deleted once {spec.target} has acknowledged message {spec.at.message}"
        found += only_after(spec, "acknowledge", when)
        if len([fault for fault in scenario.chaos if fault.fault == spec.fault]) > 1:
            message = (
                "only one fault of this kind is supported: the history numbers the records of two topics, not of more"
            )
            found.append(SpecProblem(("fault",), message, "keep one"))
        return found

    @classmethod
    def placement(cls, spec: RecreateTopicSpec, scenario: Scenario) -> Placement:
        proof = f"the ids of both topics, that {spec.target} had done all of the old one, and its first message of the new one"
        return Placement(
            "exact", "gate of the consumers", "the consumer is ended while it waits at its next step", proof
        )

    def strike(self, context: ConsumerFaultContext, seen: StepDone) -> None:
        assert isinstance(context.queues, Recreatable), "validated: a topic"
        context.processes.kill(self._spec.target)
        self._found = context.queues.recreate()

    def recreates(self) -> bool:
        """Implements `onceproof.consumers.routes.Recreates`."""
        return self._found is not None

    def prove(self, context: ConsumerFaultContext, seen: StepDone) -> Proof:
        found, target = self._found, self._spec.target
        assert found is not None, "it struck"
        evidence = [
            f"the topic had id {found.old_id} and {found.records} records; created again, it had id {found.new_id} and none"
        ]
        if found.old_id == found.new_id:
            return missed(*evidence, "it is the same topic")
        sent = {e.message for e in seen.before if e.kind == "publish"}
        done = {e.message for e in seen.before if e.kind == "acknowledge"}
        if sent - done:
            return missed(
                *evidence, f"{_named(sent - done)} had not been read: what is missing was deleted with the topic"
            )
        later = [e.message for e in seen.after if e.kind == "publish"]
        if not later:
            return missed(*evidence, "no message was published to the new topic")
        if not any(e.kind == "start" and e.consumer == target for e in seen.after):
            return missed(*evidence, f"{target} was not restarted")
        first = next((e for e in seen.after if e.kind == "take" and e.consumer == target), None)
        if first is not None:
            place = later.index(first.message)
            evidence.append(
                f"{target} was restarted and took message {first.message} first, at offset {place} of the new topic, at tick {first.tick}"
            )
        elif any(e.kind == "end" and e.consumer == target for e in seen.after):
            evidence.append(f"{target} was restarted and ended by itself")
        else:
            evidence.append(f"{target} was restarted and took no message")
        return proven(*evidence)


def _named(numbers: set[int]) -> str:
    listed = ", ".join(map(str, sorted(numbers)))
    return f"message {listed}" if len(numbers) == 1 else f"messages {listed}"
