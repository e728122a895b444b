"""Base of a fault kind that strikes each of its targets by other means: it forwards to one striker per target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from onceproof.faults.context import FaultContext
from onceproof.faults.contract import NeedsInput, Occurrence, Placement, Proof, SpecProblem
from onceproof.scenario.model import Scenario


class Striker(Protocol):
    """The part of `onceproof.faults.contract.Fault` that acts."""

    def matches(self, seen: Occurrence) -> bool: ...

    def strike(self, context: FaultContext, seen: Occurrence) -> None: ...

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof: ...

    def heal(self, context: FaultContext) -> None: ...


@dataclass(frozen=True)
class TargetStriker:
    """The implementation of a fault kind for one target."""

    striker: Striker
    problems: Callable[[Scenario], list[SpecProblem]]
    placement: Callable[[Scenario], Placement]
    reads_frames: bool = False
    takes_frame: bool = False
    """Whether it uses the spec's ``frame``."""


class ByTarget:
    """A fault kind that forwards its part in a run to the striker of its target."""

    def __init__(self, striker: Striker) -> None:
        self._striker = striker

    def matches(self, seen: Occurrence) -> bool:
        return self._striker.matches(seen)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self._striker.strike(context, seen)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        return self._striker.prove(context, seen)

    def heal(self, context: FaultContext) -> None:
        self._striker.heal(context)

    @property
    def needs_input(self) -> bool:
        return isinstance(self._striker, NeedsInput) and self._striker.needs_input


def ignored_problems(target: str, *, leader_of: str | None, coordinator_of: str | None) -> list[SpecProblem]:
    """``leader_of`` and ``coordinator_of`` choose a broker; for another target they would be silently ignored."""
    given = {"leader_of": leader_of, "coordinator_of": coordinator_of}
    return [
        SpecProblem((name,), f"{target} is not a broker", f"remove {name}, or set target: broker")
        for name, value in given.items()
        if value is not None and target not in ("broker", "controller")
    ]
