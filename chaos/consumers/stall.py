"""Stall of a consumer: SIGSTOP while it has a message, until the other groups are further."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from onceproof.consumers.faults import AtItsStep, ConsumerFaultContext, StepDone, consumer_faults, only_after
from onceproof.consumers.trace import TraceEvent
from onceproof.data import rows_of
from onceproof.faults.contract import Placement, Proof, SpecProblem, missed, proven
from onceproof.scenario.model import ConsumerFaultSpec, Scenario, consumers_of

_DONE = ("acknowledge", "commit")


class StallSpec(ConsumerFaultSpec):
    numbers: ClassVar[tuple[str, ...]] = ("until",)

    fault: Literal["stall"]
    until: PositiveInt = Field(
        description="number of the message that every other group must have acknowledged before it ends"
    )


@consumer_faults.register("stall")
class Stall(AtItsStep):
    """Every thread of the consumer's process is stopped, as by a long pause of its machine. It stays a member of its group."""

    Spec: ClassVar[type[ConsumerFaultSpec]] = StallSpec
    about: ClassVar[str] = (
        "SIGSTOP of a consumer that has a message, until all other groups have acknowledged a later one"
    )

    def __init__(self, spec: StallSpec) -> None:
        self._spec = spec
        self._others: dict[str, str] = {}

    @classmethod
    def problems(cls, spec: StallSpec, scenario: Scenario) -> list[SpecProblem]:
        consumers = consumers_of(scenario)
        found = []
        if consumers.broker != "kafka-group" or not consumers.static or len(consumers.groups) < 2:
            message = f"{spec.target} is stopped until other groups are further, and no other group reads the same log"
            found.append(
                SpecProblem(("fault",), message, "use broker: kafka-group with static members, and several groups")
            )
        if spec.until <= spec.at.message:
            message = f"until: {spec.until} is not after message {spec.at.message}, which {spec.target} has then"
            found.append(SpecProblem(("until",), message, f"use {spec.at.message + 1} or more"))
        return [*found, *at_its_work(spec), *no_such_message("until", spec.until, scenario)]

    @classmethod
    def placement(cls, spec: StallSpec, scenario: Scenario) -> Placement:
        proof = f"that every other group acknowledged message {spec.until} while {spec.target} was stopped"
        return Placement(
            "exact", "gate of the consumers", "the consumer is stopped while it waits at its next step", proof
        )

    def strike(self, context: ConsumerFaultContext, seen: StepDone) -> None:
        mine = context.layout.group_of[self._spec.target]
        self._others = {name: group for name, group in context.layout.group_of.items() if group != mine}
        context.processes.stop_one(self._spec.target)

    def is_over(self, since: Sequence[TraceEvent]) -> bool:
        done = {e.group for e in since if e.kind in _DONE and e.message == self._spec.until}
        return set(self._others.values()) <= done

    def before_resume(self, context: ConsumerFaultContext) -> Sequence[int]:
        return ()

    def heal(self, context: ConsumerFaultContext) -> None:
        context.processes.resume(self._spec.target)

    def prove(self, context: ConsumerFaultContext, seen: StepDone) -> Proof:
        target, until = self._spec.target, self._spec.until
        stopped, after = _stopped(target, seen.after)
        evidence = [f"{target} was stopped with message {self._spec.at.message}"]
        if any(e.consumer == target for e in stopped):
            return missed(*evidence, "it did a step although it was stopped")
        for name, group in self._others.items():
            done = next((e for e in stopped if e.kind in _DONE and (e.group, e.message) == (group, until)), None)
            if done is not None:
                evidence.append(f"meanwhile {name} of group {group} acknowledged message {until}, at tick {done.tick}")
        if not self.is_over(stopped):
            return missed(*evidence, f"not every other group acknowledged message {until} meanwhile")
        effects = [e.message for e in after if e.consumer == target and e.kind == "effect"]
        return proven(
            *evidence, f"{target} continued after that, and wrote messages {', '.join(map(str, effects)) or 'none'}"
        )


def at_its_work(spec: ConsumerFaultSpec) -> list[SpecProblem]:
    """A problem unless the fault stops a consumer at its work, which begins when it has taken its message."""
    why = f"{spec.target} is stopped at its work, which begins when it has taken message {spec.at.message}"
    return only_after(spec, "take", why)


def no_such_message(field: str, number: int, scenario: Scenario) -> list[SpecProblem]:
    """A problem if a field of a fault names a message that the input does not have."""
    rows = rows_of(scenario.input[0], scenario.seed)
    if number <= rows:
        return []
    return [SpecProblem((field,), f"there is no message {number}: they are numbered from 1 to {rows}")]


def _stopped(target: str, since: Sequence[TraceEvent]) -> tuple[list[TraceEvent], list[TraceEvent]]:
    """The events while it was stopped, without those of the stop itself, and the events after that."""
    events = [e for e in since if e.kind != "stop"]
    end = next((i for i, e in enumerate(events) if e.kind == "resume" and e.consumer == target), len(events))
    return events[:end], events[end + 1 :]
