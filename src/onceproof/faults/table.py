"""The faults of one run, for every kind of pipeline: the state of each, its events in the timeline, its row in the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.masking import masked
from onceproof.base.timeline import Event, Timeline
from onceproof.faults.contract import FaultOf, Proof, Watches, fault_of
from onceproof.faults.evidence.item import items, to_row
from onceproof.scenario.base import AnyFaultSpec

SpecT = TypeVar("SpecT", bound=AnyFaultSpec)
ContextT = TypeVar("ContextT")


@dataclass
class Armed(Generic[SpecT]):
    """One fault of the run and its state."""

    index: int
    spec: SpecT
    fault: FaultOf[Any, Any]
    query: str = ""
    """The query; for a fault of consumers, the group."""
    armed_at: float | None = None
    fired_at: float | None = None
    healed_at: float | None = None
    proof: Proof | None = None
    not_healed: str | None = None
    """Why the fault could not be healed; the pipeline's behaviour from then on proves nothing."""

    @property
    def hit(self) -> bool:
        return self.proof is not None and self.proof.hit

    @property
    def in_progress(self) -> bool:
        return self.fired_at is not None and self.healed_at is None

    def describe(self) -> dict[str, Any]:
        """The columns that its row and each of its events have."""
        return {
            "index": self.index,
            "fault": self.spec.fault,
            "target": self.spec.target,
            "query": self.query,
            **self.spec.at.described(),
        }


class FaultTable(Generic[SpecT, ContextT]):
    """All faults of a run, in the scenario's order. A subclass decides when each one strikes.

    The run must call `heal_all` however it ends.
    """

    def __init__(self, specs: Sequence[SpecT], timeline: Timeline) -> None:
        self._timeline = timeline
        self._context: ContextT | None = None
        self.armed = [Armed(i, spec, fault_of(spec)(spec), self._query(spec)) for i, spec in enumerate(specs)]

    def arm(self, context: ContextT) -> None:
        """Arm all faults: from here on a fault fires when its position is reached."""
        self._context = context
        for armed in self.armed:
            if isinstance(armed.fault, Watches):
                armed.fault.watch(context)
            armed.armed_at = self._emit("fault.armed", armed).at

    @property
    def any_fired(self) -> bool:
        return any(a.fired_at is not None for a in self.armed)

    @property
    def quiet(self) -> bool:
        """Whether no fault is between firing and healing."""
        return not any(a.in_progress for a in self.armed)

    @property
    def active(self) -> list[str]:
        """The kinds of the faults that are between firing and healing."""
        return [a.spec.fault for a in self.armed if a.in_progress]

    def heal_all(self) -> None:
        """Heal each fault that has fired and is not healed. Idempotent; `check` raises if one failed to heal."""
        for armed in self.armed:
            if armed.in_progress:
                self._heal(armed)

    def check(self) -> None:
        """Raise `EnvironmentProblem` if a fault could not be healed: that is not the pipeline's fault."""
        failed = [armed.not_healed for armed in self.armed if armed.not_healed is not None]
        if failed:
            raise EnvironmentProblem("; ".join(failed), hint="the logs of the services are in the run directory")

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the history's table ``faults``."""
        return [
            {
                **a.describe(),
                "armed_at": a.armed_at,
                "fired_at": a.fired_at,
                "hit": a.hit,
                "healed_at": a.healed_at,
                **to_row(a.proof.evidence if a.proof else (self._why_not(a),)),
            }
            for a in self.armed
        ]

    # -- for subclasses -------------------------------------------------------------------------------------------

    def _query(self, spec: SpecT) -> str:
        """The query (for consumers: the group) that the fault will strike; empty if that is not known before it strikes."""
        raise NotImplementedError

    def _why_not(self, armed: Armed[SpecT]) -> str:
        """Why the fault has no proof."""
        raise NotImplementedError

    def _emit(self, kind: str, armed: Armed[SpecT], **more: Any) -> Event:
        return self._timeline.emit(kind, **armed.describe(), **more)

    def _heal(self, armed: Armed[SpecT]) -> None:
        if armed.healed_at is not None or self._context is None:
            return
        try:
            armed.fault.heal(self._context)
        except Exception as failure:
            why = f"fault {armed.spec.fault} {armed.spec.target} could not be healed: {failure}"
            armed.not_healed = masked(why)
            self._timeline.emit("warning", message=armed.not_healed)
        armed.healed_at = self._emit("fault.healed", armed).at

    def _prove(self, armed: Armed[SpecT], proof: Proof, where: str) -> None:
        """Store the proof; each item of its evidence gets its place and time."""
        evidence = tuple(one.brief() for one in items(proof.evidence, where, self._timeline.now()))
        armed.proof = replace(proof, evidence=evidence)

    def _settle(self, armed: Armed[SpecT]) -> None:
        """Emit whether the fault hit."""
        assert armed.proof is not None, "the proof is stored before this"
        self._emit("fault.hit" if armed.hit else "fault.missed", armed, evidence=[*map(str, armed.proof.evidence)])
