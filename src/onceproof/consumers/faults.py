"""What a fault of a consumer is. Each kind is one file under ``chaos/consumers/`` that implements `ConsumerFault` and registers it.

As with those of a Spark job: placed by position, and proven by what was seen, never by the attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from onceproof.base.registry import Registry
from onceproof.consumers.trace import Move
from onceproof.faults.contract import Placement, Proof, SpecProblem
from onceproof.scenario import kinds
from onceproof.scenario.model import ConsumerFaultSpec, Scenario

if TYPE_CHECKING:
    from onceproof.consumers.brokers.contract import Queues
    from onceproof.consumers.layout import Layout
    from onceproof.consumers.processes import Crew


@dataclass(frozen=True)
class Scene:
    """What a fault can lay hands on: the consumers' processes, and the broker's end of this play."""

    crew: Crew
    queues: Queues
    layout: Layout


class ConsumerFault(Protocol):
    """One fault of one run. Constructed from its validated spec; where it strikes, ``spec.at`` says."""

    Spec: ClassVar[type[ConsumerFaultSpec]]
    about: ClassVar[str]
    reads_frames: ClassVar[bool]
    """Whether it needs the protocol proxy (`Queues.frames`)."""

    def __init__(self, spec: Any) -> None: ...

    @classmethod
    def problems(cls, spec: Any, scenario: Scenario) -> list[SpecProblem]:
        """What makes this spec impossible in this scenario, beside its message and its consumers."""

    @classmethod
    def placement(cls, spec: Any, scenario: Scenario) -> Placement: ...

    def strike(self, scene: Scene) -> None:
        """Act, while every consumer is held at a step."""

    def heal(self, scene: Scene, since: Sequence[Move]) -> bool:
        """Asked after it struck and after each move ``since``: whether it is over, ended by this call or before."""

    def prove(self, before: Sequence[Move], after: Sequence[Move]) -> Proof:
        """From the moves before and after it struck, once the run is over."""


@runtime_checkable
class Outlasts(Protocol):
    """A fault that keeps its living consumer at its step until it is healed: by then another has been given the message."""

    def foresee(self, scene: Scene) -> None:
        """Called right before the message is published that it will strike."""

    def is_taken(self, scene: Scene) -> None:
        """Called when that message was given to somebody, before it strikes."""


consumer_faults: Registry[type[ConsumerFault]] = kinds.consumer_faults
