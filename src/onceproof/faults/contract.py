"""What a fault is. Each kind is one file under ``chaos/`` that implements `Fault` and registers it.

A fault is placed by logical position, acts, and must then *prove* that it hit: from the state that it left behind,
never from the attempt. The order is always armed -> fired -> hit (or not) -> healed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from onceproof.base.registry import Registry
from onceproof.faults.context import FaultContext
from onceproof.faults.evidence.item import Evidence
from onceproof.scenario import kinds
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point


@dataclass(frozen=True)
class Placement:
    """How exactly a fault can be put where the scenario wants it, and by which instrument."""

    exactness: Literal["exact", "approximate", "n/a"]
    instrument: str
    """``checkpoint file system``, ``failpoint in the sink``, ``Toxiproxy``, ..."""
    why: str
    proof: str
    """What will prove that it hit."""


@dataclass(frozen=True)
class SpecProblem:
    """Something about a fault (or oracle) that can never work. ``loc`` is the path below the fault's own mapping."""

    loc: tuple[str | int, ...]
    message: str
    hint: str | None = None


@dataclass(frozen=True)
class Occurrence:
    """A point that a batch has just reached."""

    query: str
    batch: int
    point: Point
    instrument: Literal["checkpoint", "watcher", "failpoint"]
    """The checkpoint file system, in whose write the driver waits; the watcher, which hears of it afterwards; a sink."""
    sink: str = ""
    """``postgres`` or ``kafka`` for a failpoint; empty for what is seen at the checkpoint."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the sink told: ``xid``, ``transactional_id``, ``topics``, ``progress_topic``, ..."""
    release: Callable[[], None] | None = None
    """Lets the parked sink go on; None where nothing is parked. Idempotent."""
    hold: Callable[[], Callable[[], None]] | None = None
    """Keeps the driver in its log write after all have struck, until the function that it returns is called; whoever takes it
    must call that, in `Fault.heal` at the latest. None where the driver does not wait in a log write."""
    attempt: int | None = None
    """Which attempt at the batch this is, from 1; None where only the watcher saw it, who cannot tell."""


@dataclass(frozen=True)
class Proof:
    hit: bool
    evidence: tuple[str | Evidence, ...]
    """What was seen, or what was missing. A text is an item that quotes nobody."""


class Fault(Protocol):
    """One fault of one run. Constructed from its validated spec.

    What only some kinds need is a protocol of its own: `ReadsFrames`, `NeedsInput`, `Watches`, and
    `onceproof.faults.job.OffersCells`. A kind has the method, and says nothing more.
    """

    Spec: ClassVar[type[FaultSpec]]
    about: ClassVar[str]
    """One line for listings."""

    def __init__(self, spec: Any) -> None: ...

    @classmethod
    def problems(cls, spec: Any, scenario: Scenario) -> list[SpecProblem]:
        """What makes this spec impossible in this scenario."""

    @classmethod
    def placement(cls, spec: Any, scenario: Scenario) -> Placement: ...

    def matches(self, seen: Occurrence) -> bool:
        """Whether this is the position to strike at (query and batch are already known to match)."""

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        """Act, at once: called in the thread that saw the point, while a parked sink is still parked."""

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        """Wait for the symptom, heal, and say from the state left behind whether it hit. Own thread; may block."""

    def heal(self, context: FaultContext) -> None:
        """Undo whatever strike did. Idempotent; always called, also when nothing was struck."""


@runtime_checkable
class ReadsFrames(Protocol):
    """A kind that strikes at a request or an answer, with some of its specs or all: the run then has the protocol proxy."""

    @classmethod
    def reads_frames(cls, spec: Any) -> bool: ...


@runtime_checkable
class NeedsInput(Protocol):
    """A fault that cannot go on without input: while this is true the feed goes on, which otherwise waits for its healing."""

    @property
    def needs_input(self) -> bool: ...


@runtime_checkable
class Watches(Protocol):
    """A fault that must know what went on before its batch: called before the job starts, and changes nothing."""

    def watch(self, context: FaultContext) -> None: ...


def reads_frames(specs: Iterable[FaultSpec]) -> bool:
    """Whether one of these faults needs the protocol proxy."""
    kinds = ((faults.get(spec.fault), spec) for spec in specs)
    return any(isinstance(kind, ReadsFrames) and kind.reads_frames(spec) for kind, spec in kinds)


def strikes_tasks(spec: FaultSpec) -> bool:
    """Whether it strikes what runs a batch's tasks, and is proven by what Spark tells of their attempts."""
    return spec.at.point is Point.IN_TASKS


def strikes_at(spec: FaultSpec) -> Point:
    """The point at which the fault must be told of its batch: its own, or that of the plan where it reads the batch's frames."""
    return Point.AFTER_OFFSET_LOG if reads_frames([spec]) else spec.at.point


faults: Registry[type[Fault]] = kinds.faults
