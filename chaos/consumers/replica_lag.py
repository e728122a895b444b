"""Replica lag: the database's replica falls behind, and answers with what it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from onceproof.base.words import times
from onceproof.consumers.brokers.contract import HasReplica
from onceproof.consumers.faults import AtItsStep, ConsumerFaultContext, StepDone, consumer_faults, only_after
from onceproof.consumers.trace import TraceEvent
from onceproof.faults.contract import Placement, Proof, SpecProblem, missed, proven
from onceproof.scenario.model import ConsumerFaultSpec, Scenario
from onceproof.stack.api import Replica


class ReplicaLagSpec(ConsumerFaultSpec):
    fault: Literal["replica-lag"]


@consumer_faults.register("replica-lag")
class ReplicaLag(AtItsStep):
    """Nothing of the primary's log arrives at the replica (Toxiproxy ``timeout``) until the message is acknowledged.

    The replica has all that was committed before. It sees no error, and neither do its readers.
    """

    Spec: ClassVar[type[ConsumerFaultSpec]] = ReplicaLagSpec
    about: ClassVar[str] = "the database's replica falls behind, until a message is acknowledged"

    def __init__(self, spec: ReplicaLagSpec) -> None:
        self._spec = spec
        self._lag: int | None = None
        """How far it was behind when the message was acknowledged, bytes of the log."""
        self._replica: Replica | None = None

    @classmethod
    def problems(cls, spec: ReplicaLagSpec, scenario: Scenario) -> list[SpecProblem]:
        return replica_problems(spec, scenario)

    @classmethod
    def placement(cls, spec: ReplicaLagSpec, scenario: Scenario) -> Placement:
        proof = f"{spec.target} wrote an effect of message {spec.at.message}, and how much of the log the replica lacked after that"
        why = "consumers ask before each step, and the effect is allowed once nothing arrives at the replica"
        return Placement("exact", "gate of the consumers, and Toxiproxy", why, proof)

    def strike(self, context: ConsumerFaultContext, seen: StepDone) -> None:
        assert isinstance(context.queues, HasReplica) and context.queues.replica is not None, "validated"
        self._replica = context.queues.replica
        self._replica.follow()
        self._replica.stop_following()

    def is_over(self, since: Sequence[TraceEvent]) -> bool:
        """Implements `onceproof.consumers.routes.Lasts`."""
        over = any(e.kind == "acknowledge" and e.message == self._spec.at.message for e in since)
        if over and self._lag is None and self._replica is not None:
            self._lag = self._replica.lag_bytes()
        return over

    def heal(self, context: ConsumerFaultContext) -> None:
        if self._replica is not None:
            self._replica.follow()

    def prove(self, context: ConsumerFaultContext, seen: StepDone) -> Proof:
        target, message = self._spec.target, self._spec.at.message
        evidence = [
            f"the replica had all commits when {target} had taken message {message}; from then on nothing arrived there"
        ]
        effects = [e for e in seen.after if e.kind == "effect" and (e.consumer, e.message) == (target, message)]
        if self._lag is None:
            return missed(*evidence, f"message {message} was never acknowledged")
        evidence.append(
            f"when message {message} was acknowledged, the replica was {times(self._lag, 'byte')} of the log behind"
        )
        if not self._lag or not effects:
            return missed(*evidence, f"{target} wrote {times(len(effects), 'effect')} of message {message} meanwhile")
        return proven(*evidence, f"{target} wrote {times(len(effects), 'effect')} of message {message} meanwhile")


def replica_problems(spec: ConsumerFaultSpec, scenario: Scenario) -> list[SpecProblem]:
    """Problems of a fault that stops the replica from following before an effect."""
    when = f"the replica falls behind before {spec.target} writes the effect of message {spec.at.message}"
    found = only_after(spec, "take", when)
    if scenario.stack.postgres is None or scenario.stack.postgres.replica is None:
        message = "this stack has no replica of Postgres"
        found.append(SpecProblem(("fault",), message, "stack: {postgres: {replica: asynchronous}}"))
    return found
