"""Crash of a consumer: SIGKILL while it has a message. The broker takes back what it had not acknowledged."""

from __future__ import annotations

from typing import ClassVar, Literal

from onceproof.consumers.faults import AtItsStep, Scene, StepDone, consumer_faults
from onceproof.consumers.redelivery import LAST_STEP, given_out_again
from onceproof.faults.contract import Placement, Proof, SpecProblem
from onceproof.scenario.model import WORKER, ConsumerFaultSpec, Scenario, consumers_of


class CrashSpec(ConsumerFaultSpec):
    fault: Literal["crash"]


@consumer_faults.register("crash")
class Crash(AtItsStep):
    """The consumer's process dies at once, as from a kernel's out-of-memory killer or a lost machine."""

    Spec: ClassVar[type[ConsumerFaultSpec]] = CrashSpec
    about: ClassVar[str] = "SIGKILL of a consumer that has a message, at a step and while another has its own"

    def __init__(self, spec: CrashSpec) -> None:
        self._spec = spec

    @classmethod
    def problems(cls, spec: CrashSpec, scenario: Scenario) -> list[SpecProblem]:
        consumers = consumers_of(scenario)
        found: list[SpecProblem] = []
        if consumers.broker == "kafka-group" and consumers.restart_after is None:
            message = "a consumer that dies never comes back, and its partitions wait for it: it is a static member of its group"
            found.append(SpecProblem((), message, "pipeline: consumers: restart_after: TICKS"))
        # The order of steps of a user's own command is known only when it runs: the proof sees to it.
        if scenario.pipeline.command != WORKER or spec.at.after != LAST_STEP.get(consumers.acknowledge):
            return found
        message = (
            f"a crash after {spec.at.after} exercises nothing with acknowledge: {consumers.acknowledge}: "
            f"effect and acknowledgement of message {spec.at.message} are both done by then"
        )
        earlier = "effect" if spec.at.after == "acknowledge" else "acknowledge"
        return [*found, SpecProblem(("at", "after"), message, f"use take or {earlier}")]

    @classmethod
    def placement(cls, spec: CrashSpec, scenario: Scenario) -> Placement:
        proof = (
            f"who held what when {spec.target} was killed, and that the broker gave message {spec.at.message} out again"
        )
        why = "consumers ask before each step, and nobody moves while it is killed"
        return Placement("exact", "gate of the consumers", why, proof)

    def strike(self, scene: Scene, seen: StepDone) -> None:
        scene.crew.kill(self._spec.target)

    def prove(self, scene: Scene, seen: StepDone) -> Proof:
        return given_out_again(self._spec, "was killed", seen.before, seen.after)
