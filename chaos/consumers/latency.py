"""Latency: the database answers late, and a client that does not wait so long does not know what has become of its request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from onceproof.consumers.brokers.contract import Delays
from onceproof.consumers.faults import AtItsStep, ConsumerFaultContext, StepDone, consumer_faults, only_after
from onceproof.consumers.trace import TraceEvent
from onceproof.faults.contract import Placement, Proof, SpecProblem, missed, proven
from onceproof.scenario.model import ConsumerFaultSpec, Scenario

_OVER = ("effect", "refuse", "lost", "end")


class LatencySpec(ConsumerFaultSpec):
    fault: Literal["latency"]
    by_ms: Annotated[int, Field(ge=10, le=10_000)] = Field(
        description="how much later each answer of the database arrives, milliseconds"
    )


@consumer_faults.register("latency")
class Latency(AtItsStep):
    """Each answer of Postgres is held back on the network (Toxiproxy ``latency``) until the effect of the message is done.

    The database itself is as fast as ever: a request arrives at once and is applied. So a client that gives up and sends it again
    has it applied twice. How long clients wait is their own setting, so nothing here is guessed.
    """

    Spec: ClassVar[type[ConsumerFaultSpec]] = LatencySpec
    about: ClassVar[str] = "each answer of the database is late, until the effect of a message is done"

    def __init__(self, spec: LatencySpec) -> None:
        self._spec = spec
        self._before_ms = 0.0
        self._during_ms = 0.0
        self._began = 0.0
        self._took_ms: float | None = None
        """How long the effect took, once it is done."""

    @classmethod
    def problems(cls, spec: LatencySpec, scenario: Scenario) -> list[SpecProblem]:
        when = f"the answers are late while {spec.target} writes the effect of message {spec.at.message}"
        found = only_after(spec, "take", when)
        if scenario.stack.postgres is None:
            found.append(SpecProblem(("fault",), "this stack has no Postgres", "add `postgres: {}` to the stack"))
        return found

    @classmethod
    def placement(cls, spec: LatencySpec, scenario: Scenario) -> Placement:
        proof = (
            f"the round trip of a statement over the consumers' own route before and meanwhile, and how long the effect of message "
            f"{spec.at.message} took"
        )
        why = "consumers ask before each step, and the effect is allowed once answers are late"
        return Placement("exact", "gate of the consumers, and Toxiproxy", why, proof)

    def strike(self, context: ConsumerFaultContext, seen: StepDone) -> None:
        assert isinstance(context.queues, Delays), "validated: the stack has Postgres"
        self._before_ms = context.queues.round_trip_ms()
        context.queues.delay(self._spec.by_ms)
        self._during_ms = context.queues.round_trip_ms()
        self._began = time.monotonic()

    def is_over(self, since: Sequence[TraceEvent]) -> bool:
        over = any(e.consumer == self._spec.target and e.kind in _OVER for e in since)
        if over and self._took_ms is None:
            self._took_ms = 1000 * (time.monotonic() - self._began)
        return over

    def heal(self, context: ConsumerFaultContext) -> None:
        if isinstance(context.queues, Delays):
            context.queues.delay(0)

    def prove(self, context: ConsumerFaultContext, seen: StepDone) -> Proof:
        by_ms, message = self._spec.by_ms, self._spec.at.message
        evidence = [
            f"a round trip to the database took {self._before_ms:.0f} ms before, and {self._during_ms:.0f} ms meanwhile"
        ]
        if self._during_ms - self._before_ms < by_ms / 2 or self._during_ms < by_ms:
            return missed(*evidence, f"that is not the delay of {by_ms} ms")
        done = next((e for e in seen.after if e.consumer == self._spec.target and e.kind in _OVER), None)
        if done is None or done.kind == "end" or self._took_ms is None:
            return missed(*evidence, f"{self._spec.target} did not finish the effect of message {message}")
        evidence.append(f"the effect of message {message} took {self._took_ms:.0f} ms from then on")
        if self._took_ms < by_ms:
            return missed(*evidence, "so it did not wait for the database")
        return proven(*evidence)
