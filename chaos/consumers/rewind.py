"""Rewind: the offsets of a consumer's group are set back, so that it processes messages again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from onceproof.consumers.brokers.contract import Repositions
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


class RewindSpec(ConsumerFaultSpec):
    numbers: ClassVar[tuple[str, ...]] = ("to",)

    fault: Literal["rewind"]
    to: PositiveInt = Field(description="number of the message with which the group begins again")


@consumer_faults.register("rewind")
class Rewind(AtItsStep):
    """The consumer is ended (SIGKILL), because Kafka sets offsets only of a group without members, and restarted after that."""

    Spec: ClassVar[type[ConsumerFaultSpec]] = RewindSpec
    about: ClassVar[str] = "the offsets of a group are set back to an earlier message, while its consumer is restarted"

    def __init__(self, spec: RewindSpec) -> None:
        self._spec = spec
        self._was: int | None = None
        self._is: int | None = None

    @classmethod
    def problems(cls, spec: RewindSpec, scenario: Scenario) -> list[SpecProblem]:
        why = "only the offsets that a consumer group has committed, after its effects, can be set back"
        why_alone = (
            "the group has several members or partitions, and the number of a message is the offset of one partition"
        )
        found = only_sole_consumer(spec, scenario, why, why_alone)
        when = f"the offsets are set back once {spec.target} has acknowledged message {spec.at.message}"
        found += only_after(spec, "acknowledge", when)
        if spec.to > spec.at.message:
            message = f"message {spec.to} comes after message {spec.at.message}, so nothing would be processed again"
            found.append(SpecProblem(("to",), message, f"use {spec.at.message} or less"))
        return found

    @classmethod
    def placement(cls, spec: RewindSpec, scenario: Scenario) -> Placement:
        proof = f"the group's offsets before and after, and that messages {spec.to} to {spec.at.message} were given out again"
        return Placement(
            "exact", "gate of the consumers", "the consumer is ended while it waits at its next step", proof
        )

    def strike(self, context: ConsumerFaultContext, seen: StepDone) -> None:
        assert isinstance(context.queues, Repositions), "validated: a consumer group"
        group = context.layout.group_of[self._spec.target]
        context.processes.kill(self._spec.target)
        self._was = (context.queues.committed(group) or {}).get(0)
        self._is = context.queues.reposition(group, self._spec.to - 1)

    def rewound(self) -> Sequence[int]:
        return range(self._spec.to, self._spec.at.message + 1)

    def prove(self, context: ConsumerFaultContext, seen: StepDone) -> Proof:
        target, numbers = self._spec.target, set(self.rewound())
        evidence = [
            f"the broker reported offset {self._was} for the group before, and {self._is} after it was set back"
        ]
        if self._was is None or self._is is None or self._is >= self._was:
            return missed(*evidence, "nothing was set back")
        again = {e.message for e in seen.after if e.kind == "take" and e.consumer == target} & numbers
        if again != numbers:
            left = ", ".join(map(str, sorted(numbers - again)))
            return missed(*evidence, f"{target} was not given message {left} again")
        return proven(*evidence, f"{target} was given {_named(sorted(numbers))} again")


def _named(numbers: list[int]) -> str:
    return f"message {numbers[0]}" if len(numbers) == 1 else f"messages {', '.join(map(str, numbers))}"
