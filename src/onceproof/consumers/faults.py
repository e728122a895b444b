"""The faults of one run of consumers. Each kind is one file under ``chaos/consumers/`` that implements `ConsumerFault` and registers it.

As with those of a Spark job: placed by position, and proven by what was seen, never by the attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onceproof.base.registry import Registry
from onceproof.base.timeline import Timeline
from onceproof.consumers.routes import Lasts
from onceproof.consumers.trace import Move, holder
from onceproof.faults.contract import FaultOf, Proof, faults
from onceproof.faults.table import Armed, FaultTable
from onceproof.scenario.model import ConsumerFaultSpec, ConsumersSpec

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


@dataclass(frozen=True)
class StepDone:
    """A step that a consumer has just done, while every consumer is held at its next one."""

    moves: Sequence[Move]
    """Of the whole run: it goes on growing."""
    place: int
    """How many of them there were."""

    @property
    def before(self) -> Sequence[Move]:
        return self.moves[: self.place]

    @property
    def after(self) -> Sequence[Move]:
        return self.moves[self.place :]


class AtItsStep:
    """What faults of consumers have in common: each strikes when its step is done, and most leave nothing to undo."""

    def matches(self, seen: StepDone) -> bool:
        return True

    def heal(self, scene: Scene) -> None:
        return


ConsumerFault = FaultOf[Scene, StepDone]
consumer_faults: Registry[type[ConsumerFault]] = faults.of("consumers")


class ConsumerFaults(FaultTable[ConsumerFaultSpec, Scene]):
    """Each strikes where the drive says that its position is reached, and is proven when the run is over."""

    def __init__(
        self,
        chaos: Sequence[ConsumerFaultSpec],
        timeline: Timeline,
        consumers: ConsumersSpec,
        scene: Scene,
        moves: Sequence[Move],
    ) -> None:
        self._groups = scene.layout.group_of if consumers.groups else {}
        self._scene = scene
        self._moves = moves
        self._seen: dict[int, StepDone] = {}
        super().__init__(chaos, timeline)
        self.arm(scene)

    def strike(self, armed: Armed[ConsumerFaultSpec]) -> bool:
        """False: this is not its moment yet."""
        seen = StepDone(self._moves, len(self._moves))
        if not armed.fault.matches(seen):
            return False
        self._seen[armed.index] = seen
        armed.fired_at = self._emit("fault.fired", armed).at
        armed.fault.strike(self._scene, seen)
        return True

    def heal_if_over(self, armed: Armed[ConsumerFaultSpec]) -> bool:
        """Heal one that is in force, if it has lasted as long as it was to. Says whether it has."""
        if isinstance(armed.fault, Lasts) and not armed.fault.is_over(self._seen[armed.index].after):
            return False
        self._heal(armed)
        return True

    def settle(self) -> None:
        """Prove each, from the moves of the whole run."""
        for armed in self.armed:
            seen = self._seen.get(armed.index)
            proof = Proof(False, (self._why_not(armed),)) if seen is None else armed.fault.prove(self._scene, seen)
            self._prove(armed, proof, str(armed.spec.at))
            self._settle(armed)

    def _query(self, spec: ConsumerFaultSpec) -> str:
        """The group, as an output names it; empty where the scenario has none."""
        return self._groups.get(spec.target, "")

    def _why_not(self, armed: Armed[ConsumerFaultSpec]) -> str:
        spec = armed.spec
        held = holder(self._moves, spec.at.message)
        if spec.target not in held:
            who = f"{', then '.join(held)} held it" if held else "nobody ever did"
            return f"{spec.target} never held message {spec.at.message}: {who}"
        return f"{spec.target} held message {spec.at.message}, but it never came to: {spec.at}"
