"""A fault kind whose targets are struck by different means: who does it for one of them, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from onceproof.faults.context import FaultContext
from onceproof.faults.contract import NeedsInput, Occurrence, Placement, Proof, SpecProblem
from onceproof.scenario.model import Scenario


class Striking(Protocol):
    """The part of `onceproof.faults.contract.Fault` that acts."""

    def matches(self, seen: Occurrence) -> bool: ...

    def strike(self, context: FaultContext, seen: Occurrence) -> None: ...

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof: ...

    def heal(self, context: FaultContext) -> None: ...


@dataclass(frozen=True)
class HandedOver:
    """To whom a fault of one target goes."""

    to: Striking
    problems: Callable[[Scenario], list[SpecProblem]]
    placement: Callable[[Scenario], Placement]
    reads_frames: bool = False
    takes_frame: bool = False
    """Whether the spec's ``frame`` says something to it."""


class ByTarget:
    """A fault kind of which each target has somebody who strikes it: that one does what a fault does in a run."""

    def __init__(self, to: Striking) -> None:
        self._to = to

    def matches(self, seen: Occurrence) -> bool:
        return self._to.matches(seen)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self._to.strike(context, seen)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        return self._to.prove(context, seen)

    def heal(self, context: FaultContext) -> None:
        self._to.heal(context)

    @property
    def needs_input(self) -> bool:
        return isinstance(self._to, NeedsInput) and self._to.needs_input


def ignored_problems(target: str, *, leader_of: str | None, coordinator_of: str | None) -> list[SpecProblem]:
    """Who leads or coordinates something is a broker: said of anything else it would be passed over in silence."""
    given = {"leader_of": leader_of, "coordinator_of": coordinator_of}
    return [
        SpecProblem((name,), f"{target} is no broker", f"remove {name}, or set target: broker")
        for name, value in given.items()
        if value is not None and target not in ("broker", "controller")
    ]
