"""Crash of a consumer: SIGKILL while it has a message. The broker takes back what it had not acknowledged."""

from __future__ import annotations

from typing import ClassVar, Literal

from onceproof.consumers.faults import AtItsStep, ConsumerFaultContext, StepDone, consumer_faults
from onceproof.consumers.redelivery import given_out_again, too_late
from onceproof.faults.contract import Placement, Proof, SpecProblem
from onceproof.scenario.model import ConsumerFaultSpec, Scenario, consumers_of


class CrashSpec(ConsumerFaultSpec):
    fault: Literal["crash"]


@consumer_faults.register("crash")
class Crash(AtItsStep):
    """The consumer's process dies at once, as if killed by the kernel's out-of-memory killer or with its machine."""

    Spec: ClassVar[type[ConsumerFaultSpec]] = CrashSpec
    about: ClassVar[str] = (
        "SIGKILL of a consumer that has a message, after a given step (and while another consumer has another message)"
    )

    def __init__(self, spec: CrashSpec) -> None:
        self._spec = spec

    @classmethod
    def problems(cls, spec: CrashSpec, scenario: Scenario) -> list[SpecProblem]:
        consumers = consumers_of(scenario)
        found: list[SpecProblem] = []
        if consumers.broker == "kafka-group" and not consumers.static:
            if consumers.restart_after is not None:
                message = f"{spec.target} is not a static member: others take over its partitions, and it cannot come back yet"
                found.append(SpecProblem((), message, "leave out pipeline: consumers: restart_after"))
            if spec.target in consumers.names and len(consumers.names) == 1:
                message = f"{spec.target} is alone: no other member can take over its partitions"
                found.append(SpecProblem(("target",), message, "name another consumer under names"))
        elif consumers.broker == "kafka-group" and consumers.restart_after is None:
            message = f"{spec.target} is a static member: after its death its partitions wait for it, and it is never restarted"
            found.append(SpecProblem((), message, "pipeline: consumers: restart_after: TICKS"))
        return found + too_late(spec, scenario, "a crash")

    @classmethod
    def placement(cls, spec: CrashSpec, scenario: Scenario) -> Placement:
        proof = (
            f"who held what when {spec.target} was killed, and that the broker gave message {spec.at.message} out again"
        )
        why = "consumers ask before each step, and all others wait while this one is killed"
        return Placement("exact", "gate of the consumers", why, proof)

    def kills(self) -> bool:
        return True

    def strike(self, context: ConsumerFaultContext, seen: StepDone) -> None:
        context.processes.kill(self._spec.target)

    def prove(self, context: ConsumerFaultContext, seen: StepDone) -> Proof:
        return given_out_again(self._spec, "was killed", seen.before, seen.after)
