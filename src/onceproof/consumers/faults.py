"""The faults of a run of consumers: each kind is a file under ``chaos/consumers/`` that registers a `ConsumerFault`.

Like the faults of a Spark job they are placed by position, and proven by what was observed, never by the attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onceproof.base.registry import Registry
from onceproof.base.timeline import Timeline
from onceproof.consumers.routes import AddsPartitions, KnowsArrival, Lasts, OutlastsItsBroker, Recreates
from onceproof.consumers.trace import TraceEvent, holders
from onceproof.faults.contract import FaultOf, Proof, SpecProblem, faults
from onceproof.faults.table import Armed, FaultTable
from onceproof.scenario.consumers import ConsumersSpec
from onceproof.scenario.model import ConsumerFaultSpec, Scenario, consumers_of

if TYPE_CHECKING:
    from onceproof.consumers.brokers.contract import Queues
    from onceproof.consumers.layout import Layout
    from onceproof.consumers.processes import ConsumerProcesses


@dataclass(frozen=True)
class ConsumerFaultContext:
    """What a fault can act on: the consumers' processes, and the broker's side of this execution."""

    processes: ConsumerProcesses
    queues: Queues
    layout: Layout


@dataclass(frozen=True)
class StepDone:
    """A step that a consumer has just done, while every consumer is held at its next one."""

    trace: Sequence[TraceEvent]
    """The trace of the whole run. It keeps growing after the step."""
    length: int
    """How many events the trace had after the step."""

    @property
    def before(self) -> Sequence[TraceEvent]:
        return self.trace[: self.length]

    @property
    def after(self) -> Sequence[TraceEvent]:
        return self.trace[self.length :]


def only_after(spec: ConsumerFaultSpec, step: str, why: str) -> list[SpecProblem]:
    """A problem, with this reason, unless the fault strikes after that step."""
    return [] if spec.at.after == step else [SpecProblem(("at", "after"), why, f"use {step}")]


def only_sole_consumer(spec: ConsumerFaultSpec, scenario: Scenario, why: str, why_alone: str) -> list[SpecProblem]:
    """The problems of a fault at the committed offsets of one consumer, which it ends and which is restarted after that.

    ``why``: the message if the consumers have no such offsets; ``why_alone``: if there are several consumers or partitions.
    """
    consumers = consumers_of(scenario)
    found = []
    if consumers.broker != "kafka-group" or not consumers.static or consumers.acknowledge != "after-effect":
        hint = "use broker: kafka-group with static members, acknowledge: after-effect"
        found.append(SpecProblem(("fault",), why, hint))
    if len(consumers.names) > 1 or scenario.input[0].partitions > 1:
        found.append(SpecProblem(("fault",), why_alone, "use one consumer, and input: partitions: 1"))
    if consumers.restart_after is None:
        message = f"{spec.target} is ended, and it is never restarted"
        found.append(SpecProblem((), message, "pipeline: consumers: restart_after: TICKS"))
    return found


class AtItsStep:
    """The base of consumer faults: strikes as soon as its step is done. ``heal`` does nothing unless a kind overrides it."""

    def matches(self, seen: StepDone) -> bool:
        return True

    def heal(self, context: ConsumerFaultContext) -> None:
        return


ConsumerFault = FaultOf[ConsumerFaultContext, StepDone]
consumer_faults: Registry[type[ConsumerFault]] = faults.of("consumers")


class ConsumerFaults(FaultTable[ConsumerFaultSpec, ConsumerFaultContext]):
    """Strikes and heals the faults of a run, and proves each of them when the run is over.

    The executor says when a fault's position is reached.
    """

    def __init__(
        self,
        chaos: Sequence[ConsumerFaultSpec],
        timeline: Timeline,
        consumers: ConsumersSpec,
        context: ConsumerFaultContext,
        trace: Sequence[TraceEvent],
    ) -> None:
        self._groups = context.layout.group_of if consumers.groups else {}
        self._trace = trace
        self._struck_at: dict[int, StepDone] = {}
        super().__init__(chaos, timeline)
        self.arm(context)

    def is_reached(self, spec: ConsumerFaultSpec, held: Mapping[str, int]) -> bool:
        """Whether the last step of all was the one at which this fault strikes. ``held``: consumer -> message that it has."""
        if held.get(spec.target) != spec.at.message:
            return False
        last = next(event for event in reversed(self._trace) if event.consumer == spec.target)
        there = last.kind == spec.at.after and last.message == spec.at.message
        return there and (spec.at.while_ is None or held.get(spec.at.while_.consumer) == spec.at.while_.holds)

    def outlasting(self, message: int) -> list[OutlastsItsBroker]:
        """Faults still to strike that will have the broker give this message to a second consumer."""
        to_strike = [a.fault for a in self.armed if a.fired_at is None and a.spec.at.message == message]
        return [fault for fault in to_strike if isinstance(fault, OutlastsItsBroker)]

    @property
    def may_miss(self) -> bool:
        """Whether a fault has changed the input's topic in such a way that messages may be given to no consumer, although they are there."""
        kinds = Recreates, AddsPartitions
        return any(a.fired_at is not None and isinstance(a.fault, kinds) for a in self.armed)

    def arrived(self, consumer: str, message: int) -> bool:
        """Whether a fault knows that the broker has the step to which this consumer got no answer."""
        ours = [a for a in self.armed if (a.spec.target, a.spec.at.message) == (consumer, message)]
        return any(a.fired_at is not None and isinstance(a.fault, KnowsArrival) and a.fault.arrived() for a in ours)

    def strike(self, armed: Armed[ConsumerFaultSpec]) -> bool:
        """Strike if the position is reached. Returns False if the fault waits for a later step."""
        seen = StepDone(self._trace, len(self._trace))
        if not armed.fault.matches(seen):
            return False
        self._struck_at[armed.index] = seen
        armed.fired_at = self._emit("fault.fired", armed).at
        armed.fault.strike(self._context, seen)
        return True

    def is_over(self, armed: Armed[ConsumerFaultSpec]) -> bool:
        """Whether a fault that is in force has lasted long enough."""
        return not isinstance(armed.fault, Lasts) or armed.fault.is_over(self._struck_at[armed.index].after)

    def heal_if_over(self, armed: Armed[ConsumerFaultSpec]) -> bool:
        """Heal a fault that is in force, unless it has to last longer. Returns whether it was healed."""
        if not self.is_over(armed):
            return False
        self._heal(armed)
        return True

    def settle(self) -> None:
        """Prove each fault from the trace of the whole run."""
        for armed in self.armed:
            seen = self._struck_at.get(armed.index)
            proof = Proof(False, (self._why_not(armed),)) if seen is None else armed.fault.prove(self._context, seen)
            self._prove(armed, proof, str(armed.spec.at))
            self._settle(armed)

    def _query(self, spec: ConsumerFaultSpec) -> str:
        """The group, as an output names it; empty if the scenario has none."""
        return self._groups.get(spec.target, "")

    def _why_not(self, armed: Armed[ConsumerFaultSpec]) -> str:
        spec = armed.spec
        held = holders(self._trace, spec.at.message)
        if spec.target not in held:
            who = f"{', then '.join(held)} held it" if held else "no consumer did"
            return f"{spec.target} never held message {spec.at.message}: {who}"
        return f"{spec.target} held message {spec.at.message}, but the fault's position was never reached: {spec.at}"
