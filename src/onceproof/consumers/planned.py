"""The faults of one run of consumers: how far each came, what it left in the timeline, and its row in the history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from onceproof.base.timeline import Timeline
from onceproof.consumers.faults import ConsumerFault, consumer_faults
from onceproof.consumers.layout import Layout
from onceproof.consumers.trace import Move, holder
from onceproof.faults.contract import Proof
from onceproof.faults.evidence.item import items, to_row
from onceproof.scenario.model import ConsumerFaultSpec, ConsumersSpec


@dataclass
class Planned:
    """One fault of the run and how far it came."""

    index: int
    spec: ConsumerFaultSpec
    fault: ConsumerFault
    armed_at: float
    fired_at: float | None = None
    healed_at: float | None = None
    moves_before: int = 0
    proof: Proof | None = None


class PlannedFaults:
    """All of them, in the scenario's order. When each strikes is the drive's affair."""

    def __init__(
        self, chaos: Sequence[ConsumerFaultSpec], consumers: ConsumersSpec, layout: Layout, timeline: Timeline
    ) -> None:
        self._consumers = consumers
        self._layout = layout
        self._timeline = timeline
        self._all: list[Planned] = []
        for index, spec in enumerate(chaos):
            armed = timeline.emit("fault.armed", **self._described(index, spec))
            self._all.append(Planned(index, spec, consumer_faults.get(spec.fault)(spec), armed.at))

    def __iter__(self) -> Iterator[Planned]:
        return iter(self._all)

    @property
    def any_fired(self) -> bool:
        return any(planned.fired_at is not None for planned in self._all)

    def fires(self, planned: Planned, moves_before: int) -> None:
        planned.moves_before = moves_before
        planned.fired_at = self._timeline.emit("fault.fired", **self._described(planned.index, planned.spec)).at

    def heals(self, planned: Planned) -> None:
        planned.healed_at = self._timeline.emit("fault.healed", **self._described(planned.index, planned.spec)).at

    def settle(self, moves: Sequence[Move]) -> None:
        """Prove each, from the moves of the whole run."""
        for planned in self._all:
            if planned.fired_at is None:
                planned.proof = Proof(False, (_why_not(planned.spec, moves),))
            else:
                cut = planned.moves_before
                planned.proof = planned.fault.prove(moves[:cut], moves[cut:])
            evidence = items(planned.proof.evidence, str(planned.spec.at), self._timeline.now())
            planned.proof = Proof(planned.proof.hit, evidence)
            kind = "fault.hit" if planned.proof.hit else "fault.missed"
            described = self._described(planned.index, planned.spec)
            self._timeline.emit(kind, **described, evidence=[*map(str, evidence)])

    def rows(self) -> list[dict[str, Any]]:
        """The history's table ``faults``."""
        return [
            {
                "index": planned.index,
                "fault": planned.spec.fault,
                "target": planned.spec.target,
                "query": self._group_named(planned.spec.target),
                "point": str(planned.spec.at),
                "armed_at": planned.armed_at,
                "fired_at": planned.fired_at,
                "healed_at": planned.healed_at,
                "hit": planned.proof.hit if planned.proof else False,
                **to_row(planned.proof.evidence if planned.proof else ()),
            }
            for planned in self._all
        ]

    def _described(self, index: int, spec: ConsumerFaultSpec) -> dict[str, Any]:
        return {
            "index": index,
            "fault": spec.fault,
            "target": spec.target,
            "query": self._group_named(spec.target),
            "batch": None,
            "point": str(spec.at),
        }

    def _group_named(self, consumer: str) -> str:
        """As an output names it; empty where the scenario has no groups."""
        return self._layout.group_of[consumer] if self._consumers.groups else ""


def _why_not(spec: ConsumerFaultSpec, moves: Sequence[Move]) -> str:
    held = holder(moves, spec.at.message)
    if spec.target not in held:
        who = f"{', then '.join(held)} held it" if held else "nobody ever did"
        return f"{spec.target} never held message {spec.at.message}: {who}"
    return f"{spec.target} held message {spec.at.message}, but it never came to: {spec.at}"
