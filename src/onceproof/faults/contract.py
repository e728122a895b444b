"""What a fault is. Each kind is one file under ``chaos/`` that implements `FaultOf` and registers it.

A fault is placed by logical position, acts, and must then *prove* that it hit: from the state that it left behind,
never from the attempt. The order is always armed -> fired -> hit (or not) -> healed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from onceproof.base.registry import Registry
from onceproof.faults.context import FaultContext
from onceproof.faults.evidence.item import Evidence
from onceproof.scenario import kinds
from onceproof.scenario.base import AnyFaultSpec
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


ContextT = TypeVar("ContextT", contravariant=True)
SeenT = TypeVar("SeenT", contravariant=True)


class FaultOf(Protocol[ContextT, SeenT]):
    """One fault of one run. Constructed from its validated spec. ``SeenT`` is what was seen at its position: of a Spark job a
    point of a batch, of a consumer a step. ``ContextT`` is what it may see and touch.

    What only some kinds need is a protocol of its own: `ReadsFrames`, `NeedsInput`, `Watches`, `TakesTurns`,
    `onceproof.faults.job.OffersCells`, and those of `onceproof.consumers.routes`. A kind has the method, and says nothing more.
    """

    Spec: ClassVar[type[Any]]
    """Its `AnyFaultSpec`."""
    about: ClassVar[str]
    """One line for listings."""

    def __init__(self, spec: Any) -> None: ...

    @classmethod
    def problems(cls, spec: Any, scenario: Scenario) -> list[SpecProblem]:
        """What makes this spec impossible in this scenario."""

    @classmethod
    def placement(cls, spec: Any, scenario: Scenario) -> Placement: ...

    def matches(self, seen: SeenT) -> bool:
        """Whether this is the moment to strike (the spec's position is already known to match)."""

    def strike(self, context: ContextT, seen: SeenT) -> None:
        """Act, at once: called in the thread that saw the position, while the pipeline is held there."""

    def prove(self, context: ContextT, seen: SeenT) -> Proof:
        """Say from the state left behind whether it hit. Of a Spark job in a thread of its own: it may wait for the symptom,
        and heal. Of a consumer once the run is over."""

    def heal(self, context: ContextT) -> None:
        """Undo whatever strike did. Idempotent; always called, also when nothing was struck."""


Fault = FaultOf[FaultContext, Occurrence]
"""Of a Spark job."""


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
    """A fault that must know what went on before its position: called before the pipeline starts, and changes nothing."""

    def watch(self, context: Any) -> None: ...


@runtime_checkable
class TakesTurns(Protocol):
    """A kind of which one is in force at a time: a second would wait until the batch of the first is over."""

    @classmethod
    def takes_turns(cls) -> str:
        """Why, to be read after "already"."""


def fault_of(spec: AnyFaultSpec) -> type[FaultOf[Any, Any]]:
    """The kind of fault that a spec is of."""
    return faults.of(spec.pipeline).get(spec.fault)


def reads_frames(specs: Iterable[AnyFaultSpec]) -> bool:
    """Whether one of these faults needs the protocol proxy."""
    kinds = ((fault_of(spec), spec) for spec in specs)
    return any(isinstance(kind, ReadsFrames) and kind.reads_frames(spec) for kind, spec in kinds)


def strikes_tasks(spec: FaultSpec) -> bool:
    """Whether it strikes what runs a batch's tasks, and is proven by what Spark tells of their attempts."""
    return spec.at.point is Point.IN_TASKS


def strikes_at(spec: FaultSpec) -> Point:
    """The point at which the fault must be told of its batch: its own, or that of the plan where it reads the batch's frames."""
    return Point.AFTER_OFFSET_LOG if reads_frames([spec]) else spec.at.point


faults: Registry[type[FaultOf[Any, Any]]] = kinds.faults
