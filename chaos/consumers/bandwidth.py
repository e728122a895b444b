"""Bandwidth: the network takes only so many bytes per second to the database, so a large request is still on its way when its client
gives up.

A small request passes at once: a health check shows nothing. And a client that looks whether its large request was applied finds
nothing, because the request arrives after that, and is applied although nobody waits for its answer any more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from onceproof.consumers.brokers.contract import Limits
from onceproof.consumers.faults import AtItsStep, ConsumerFaultContext, StepDone, consumer_faults
from onceproof.consumers.trace import TraceEvent
from onceproof.faults.contract import Placement, Proof, SpecProblem, missed, proven
from onceproof.scenario.model import ConsumerFaultSpec, Scenario

_OVER = ("effect", "refuse", "lost", "end")


class BandwidthSpec(ConsumerFaultSpec):
    fault: Literal["bandwidth"]
    kb_per_s: Annotated[int, Field(ge=2, le=10_000)] = Field(
        description="how many KB per second each connection takes to the database"
    )

    @property
    def probe_kb(self) -> int:
        """The size of a request that needs half a second."""
        return self.kb_per_s // 2

    @property
    def probe_ms(self) -> float:
        """How long that request needs at least. Toxiproxy counts 1000 bytes per KB, so it needs a little longer."""
        return 1000 * self.probe_kb / self.kb_per_s


@consumer_faults.register("bandwidth")
class Bandwidth(AtItsStep):
    """Requests to Postgres pass at a limited rate (Toxiproxy ``bandwidth``) until the effect of the message is done.

    The database itself and its answers are as fast as ever. What a client has sent before it gave up still arrives.
    """

    Spec: ClassVar[type[ConsumerFaultSpec]] = BandwidthSpec
    about: ClassVar[str] = "large requests to the database arrive late, until the effect of a message is done"

    def __init__(self, spec: BandwidthSpec) -> None:
        self._spec = spec
        self._before_ms = 0.0
        self._during_ms = 0.0
        self._began = 0.0
        self._took_ms: float | None = None
        """How long the effect took, once it is done."""

    @classmethod
    def problems(cls, spec: BandwidthSpec, scenario: Scenario) -> list[SpecProblem]:
        found = []
        if scenario.stack.postgres is None:
            found.append(SpecProblem(("fault",), "this stack has no Postgres", "add `postgres: {}` to the stack"))
        if spec.at.after != "take":
            message = f"requests are slow while {spec.target} writes the effect of message {spec.at.message}"
            found.append(SpecProblem(("at", "after"), message, "use take"))
        return found

    @classmethod
    def placement(cls, spec: BandwidthSpec, scenario: Scenario) -> Placement:
        proof = (
            f"how long a statement of {spec.probe_kb} KB took over the consumers' own route before and meanwhile, and that the effect "
            f"of message {spec.at.message} took as long"
        )
        why = "consumers ask before each step, and the effect is allowed once the network is slow"
        return Placement("exact", "gate of the consumers, and Toxiproxy", why, proof)

    def strike(self, context: ConsumerFaultContext, seen: StepDone) -> None:
        assert isinstance(context.queues, Limits), "validated: the stack has Postgres"
        self._before_ms = context.queues.sending_ms(self._spec.probe_kb)
        context.queues.limit(self._spec.kb_per_s)
        self._during_ms = context.queues.sending_ms(self._spec.probe_kb)
        self._began = time.monotonic()

    def is_over(self, since: Sequence[TraceEvent]) -> bool:
        over = any(e.consumer == self._spec.target and e.kind in _OVER for e in since)
        if over and self._took_ms is None:
            self._took_ms = 1000 * (time.monotonic() - self._began)
        return over

    def heal(self, context: ConsumerFaultContext) -> None:
        if isinstance(context.queues, Limits):
            context.queues.limit(0)

    def prove(self, context: ConsumerFaultContext, seen: StepDone) -> Proof:
        spec, message = self._spec, self._spec.at.message
        evidence = [
            f"a statement of {spec.probe_kb} KB took {self._before_ms:.0f} ms before, and {self._during_ms:.0f} ms meanwhile"
        ]
        if self._during_ms - self._before_ms < spec.probe_ms / 2 or self._during_ms < spec.probe_ms:
            return missed(*evidence, f"that is not the time of {spec.kb_per_s} KB per second")
        done = next((e for e in seen.after if e.consumer == spec.target and e.kind in _OVER), None)
        if done is None or done.kind == "end" or self._took_ms is None:
            return missed(*evidence, f"{spec.target} did not finish the effect of message {message}")
        evidence.append(f"the effect of message {message} took {self._took_ms:.0f} ms from then on")
        if self._took_ms < spec.probe_ms:
            return missed(*evidence, "so its requests were too small to wait for the network")
        return proven(*evidence)
