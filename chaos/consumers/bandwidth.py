"""Bandwidth: the network takes only so many bytes per second to the database, so a large request is still on its way when its client
gives up.

A small request passes at once: a health check shows nothing. And a client that looks whether its large request was applied finds
nothing, because the request arrives after that, and is applied although nobody waits for its answer any more.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from onceproof.consumers.brokers.contract import Limits
from onceproof.consumers.faults import consumer_faults
from onceproof.consumers.slow_network import SlowNetwork, slow_network_problems
from onceproof.faults.contract import Placement, SpecProblem
from onceproof.scenario.model import ConsumerFaultSpec, Scenario


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
class Bandwidth(SlowNetwork[BandwidthSpec]):
    """Requests to Postgres pass at a limited rate (Toxiproxy ``bandwidth``) until the effect of the message is done.

    The database itself and its answers are as fast as ever. What a client has sent before it gave up still arrives.
    """

    Spec: ClassVar[type[ConsumerFaultSpec]] = BandwidthSpec
    about: ClassVar[str] = "large requests to the database arrive late, until the effect of a message is done"

    @classmethod
    def problems(cls, spec: BandwidthSpec, scenario: Scenario) -> list[SpecProblem]:
        when = f"requests are slow while {spec.target} writes the effect of message {spec.at.message}"
        return slow_network_problems(spec, scenario, when)

    @classmethod
    def placement(cls, spec: BandwidthSpec, scenario: Scenario) -> Placement:
        proof = (
            f"how long a statement of {spec.probe_kb} KB took over the consumers' own route before and meanwhile, and that the effect "
            f"of message {spec.at.message} took as long"
        )
        why = "consumers ask before each step, and the effect is allowed once the network is slow"
        return Placement("exact", "gate of the consumers, and Toxiproxy", why, proof)

    @property
    def _least_ms(self) -> float:
        return self._spec.probe_ms

    @property
    def _words(self) -> tuple[str, str, str]:
        too_quick = f"that is not the time of {self._spec.kb_per_s} KB per second"
        return (
            f"a statement of {self._spec.probe_kb} KB",
            too_quick,
            "so its requests were too small to wait for the network",
        )

    def _slow(self, queues: Limits) -> None:
        queues.limit(self._spec.kb_per_s)

    def _quick(self, queues: object) -> None:
        if isinstance(queues, Limits):
            queues.limit(0)

    def _measured_ms(self, queues: Limits) -> float:
        return queues.sending_ms(self._spec.probe_kb)
