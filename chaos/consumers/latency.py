"""Latency: the database answers late, and a client that does not wait so long does not know what has become of its request."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from onceproof.consumers.brokers.contract import Delays
from onceproof.consumers.faults import consumer_faults
from onceproof.consumers.slow_network import SlowNetwork, slow_network_problems
from onceproof.faults.contract import Placement, SpecProblem
from onceproof.scenario.model import ConsumerFaultSpec, Scenario


class LatencySpec(ConsumerFaultSpec):
    fault: Literal["latency"]
    by_ms: Annotated[int, Field(ge=10, le=10_000)] = Field(
        description="how much later each answer of the database arrives, milliseconds"
    )


@consumer_faults.register("latency")
class Latency(SlowNetwork[LatencySpec]):
    """Each answer of Postgres is held back on the network (Toxiproxy ``latency``) until the effect of the message is done.

    The database itself is as fast as ever: a request arrives at once and is applied. So a client that gives up and sends it again
    has it applied twice. How long clients wait is their own setting, so nothing here is guessed.
    """

    Spec: ClassVar[type[ConsumerFaultSpec]] = LatencySpec
    about: ClassVar[str] = "each answer of the database is late, until the effect of a message is done"

    @classmethod
    def problems(cls, spec: LatencySpec, scenario: Scenario) -> list[SpecProblem]:
        when = f"the answers are late while {spec.target} writes the effect of message {spec.at.message}"
        return slow_network_problems(spec, scenario, when)

    @classmethod
    def placement(cls, spec: LatencySpec, scenario: Scenario) -> Placement:
        proof = (
            f"the round trip of a statement over the consumers' own route before and meanwhile, and how long the effect of message "
            f"{spec.at.message} took"
        )
        why = "consumers ask before each step, and the effect is allowed once answers are late"
        return Placement("exact", "gate of the consumers, and Toxiproxy", why, proof)

    @property
    def _least_ms(self) -> float:
        return self._spec.by_ms

    @property
    def _words(self) -> tuple[str, str, str]:
        too_quick = f"that is not the delay of {self._spec.by_ms} ms"
        return "a round trip to the database", too_quick, "so it did not wait for the database"

    def _slow(self, queues: Delays) -> None:
        queues.delay(self._spec.by_ms)

    def _quick(self, queues: object) -> None:
        if isinstance(queues, Delays):
            queues.delay(0)

    def _measured_ms(self, queues: Delays) -> float:
        return queues.round_trip_ms()
