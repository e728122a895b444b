"""Cut of a consumer's connection: the process lives and works on, and the broker takes back what it had not acknowledged."""

from __future__ import annotations

from typing import ClassVar, Literal

from onceproof.consumers.faults import AtItsStep, ConsumerFaultContext, StepDone, consumer_faults
from onceproof.consumers.redelivery import given_out_again, too_late
from onceproof.consumers.routes import HasRoutes
from onceproof.faults.contract import Placement, Proof, SpecProblem
from onceproof.scenario.model import ConsumerFaultSpec, Scenario, consumers_of


class CutSpec(ConsumerFaultSpec):
    fault: Literal["cut"]


@consumer_faults.register("cut")
class Cut(AtItsStep):
    """All connections of one consumer are reset, as by a firewall that forgets them. Later connections are not touched.

    The consumer finds out at its next step, which is lost, and then takes again. Source: AMQP 0-9-1, 1.8.3.13 (unacknowledged
    messages of a channel that closes are requeued); RabbitMQ's Consumer Acknowledgements, "Automatic Requeueing".
    """

    Spec: ClassVar[type[ConsumerFaultSpec]] = CutSpec
    about: ClassVar[str] = (
        "a consumer's connections are reset while it has a message; the consumer lives and connects again"
    )

    def __init__(self, spec: CutSpec) -> None:
        self._spec = spec
        self._reset = 0

    @classmethod
    def reads_frames(cls, spec: CutSpec) -> bool:
        return True

    @classmethod
    def problems(cls, spec: CutSpec, scenario: Scenario) -> list[SpecProblem]:
        consumers = consumers_of(scenario)
        if consumers.broker != "amqp":
            message = f"cut needs AMQP, and these consumers use {consumers.broker}: Kafka's clients reconnect unnoticed"
            return [SpecProblem(("fault",), message, "use broker: amqp, or crash")]
        return too_late(spec, scenario, "a cut")

    @classmethod
    def placement(cls, spec: CutSpec, scenario: Scenario) -> Placement:
        proof = (
            f"who held what when the connection of {spec.target} was reset, that the same process got the error at its next step, "
            f"and that the broker gave message {spec.at.message} out again"
        )
        why = "consumers ask before each step, and all wait until the broker has noticed"
        return Placement("exact", "gate of the consumers, and protocol proxy", why, proof)

    def strike(self, context: ConsumerFaultContext, seen: StepDone) -> None:
        assert isinstance(context.queues, HasRoutes), "validated: cut needs AMQP"
        self._reset = context.queues.route(self._spec.target).cut()

    def disconnects(self) -> bool:
        """Implements `onceproof.consumers.routes.Disconnects`."""
        return self._reset > 0

    def prove(self, context: ConsumerFaultContext, seen: StepDone) -> Proof:
        before, after = seen.before, seen.after
        target = self._spec.target
        if self._reset == 0:
            return Proof(False, (f"{target} had no connection that could be cut",))
        proof = given_out_again(self._spec, "lost its connection", before, after)
        if not proof.hit:
            return proof
        own = [event for event in after if event.consumer == target]
        lost = next((place for place, event in enumerate(own) if event.kind == "lost"), None)
        if lost is None or any(event.kind in ("crash", "end", "start") for event in own[:lost]):
            return Proof(False, (*proof.evidence, f"{target} did not notice: none of its steps failed while it lived"))
        noticed = f"{target} lived, and its next step, at tick {own[lost].tick}, failed because its connection was gone"
        return Proof(True, (*proof.evidence, noticed))
