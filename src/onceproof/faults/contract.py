"""The contract of a fault: each kind is one file under ``chaos/`` that implements `FaultOf` and registers it.

A kind that strikes its targets by different means has a class per target, each with its own file and its own ``Spec``.

A fault waits for a logical position, strikes there, and must then *prove* that it hit: from the state that it left behind,
never from the attempt. The order is always armed -> fired -> hit (or missed) -> healed.
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
from onceproof.scenario.model import FaultSpec, PipelineSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.scenario.problem import Complaint


@dataclass(frozen=True)
class Placement:
    """How exactly a fault can strike at the position that the scenario names, and by which instrument."""

    exactness: Literal["exact", "approximate", "n/a"]
    instrument: str
    """``checkpoint file system``, ``failpoint in the sink``, ``Toxiproxy``, ..."""
    why: str
    proof: str
    """What will prove that the fault hit."""


SpecProblem = Complaint
"""A setting of a fault that can never work. Its place is the path within the fault's own mapping."""


@dataclass(frozen=True)
class Occurrence:
    """A point that a batch has just reached."""

    query: str
    batch: int
    point: Point
    instrument: Literal["checkpoint", "watcher", "failpoint"]
    """``checkpoint``: the checkpoint file system, in whose write the driver waits. ``watcher``: the checkpoint watcher, which
    sees the file after it was written. ``failpoint``: one of onceproof's sinks."""
    sink: str = ""
    """``postgres`` or ``kafka`` for a failpoint; empty for a point seen at the checkpoint."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the sink reported: ``xid``, ``transactional_id``, ``topics``, ``progress_topic``, ..."""
    release: Callable[[], None] | None = None
    """Resumes the parked sink; None where no sink is parked. Idempotent."""
    hold: Callable[[], Callable[[], None]] | None = None
    """Keeps the driver in its log write after all faults have struck, until the returned function is called. A fault that
    calls ``hold`` must call that function in `Fault.heal` at the latest. None where the driver does not wait in a log write."""
    attempt: int | None = None
    """Which attempt at the batch this is, from 1; None where only the watcher saw it, which does not know."""
    only_attempt: int | None = None
    """The attempt that the fault must strike; None: any."""


@dataclass(frozen=True)
class Proof:
    hit: bool
    evidence: tuple[str | Evidence, ...]
    """What was seen, or what was missing. A plain text is an item without a quote."""


def proven(*evidence: str | Evidence) -> Proof:
    """The proof of a fault that hit."""
    return Proof(True, evidence)


def missed(*evidence: str | Evidence) -> Proof:
    """The proof of a fault that missed: one item of the evidence says why."""
    return Proof(False, evidence)


ContextT = TypeVar("ContextT", contravariant=True)
SeenT = TypeVar("SeenT", contravariant=True)


class FaultOf(Protocol[ContextT, SeenT]):
    """One fault of one run, constructed from its validated spec.

    ``SeenT`` is what an instrument saw at the fault's position: a point of a batch for a Spark job, a step for a consumer.
    ``ContextT`` is what the fault may read and change.

    Abilities that only some kinds need are protocols of their own: `ReadsFrames`, `NeedsInput`, `Watches`, `TakesTurns`, `NeedsControl`,
    `ReplacesJob`, `onceproof.faults.job.OffersCells`, and those of `onceproof.consumers.routes`. A kind has an ability if it has the method.
    """

    Spec: ClassVar[type[Any]]
    """Its `AnyFaultSpec`."""
    about: ClassVar[str]
    """One line for listings."""

    def __init__(self, spec: Any) -> None: ...

    @classmethod
    def problems(cls, spec: Any, scenario: Scenario) -> list[SpecProblem]:
        """The reasons why this spec cannot work in this scenario."""

    @classmethod
    def placement(cls, spec: Any, scenario: Scenario) -> Placement: ...

    def matches(self, seen: SeenT) -> bool:
        """Whether to strike now. The caller has already checked that the spec's batch, query and attempt match."""

    def strike(self, context: ContextT, seen: SeenT) -> None:
        """Inject the fault at once: called in the thread that saw the position, while the pipeline is held there."""

    def prove(self, context: ContextT, seen: SeenT) -> Proof:
        """Decide from the state left behind whether the fault hit.

        For a Spark job this runs in a thread of its own: it may wait for the symptom, and heal. For a consumer it is called
        after the run.
        """

    def heal(self, context: ContextT) -> None:
        """Undo what `strike` did. Idempotent; always called, even if the fault never struck."""


Fault = FaultOf[FaultContext, Occurrence]
"""A fault of a Spark job."""


@runtime_checkable
class ReadsFrames(Protocol):
    """A kind that strikes at a request or an answer, for some or all of its specs: the run then starts the protocol proxy."""

    @classmethod
    def reads_frames(cls, spec: Any) -> bool: ...


@runtime_checkable
class NotesRequests(Protocol):
    """A kind that stops no request, but must see whether clients send any: the run then starts the protocol proxy, too."""

    @classmethod
    def notes_requests(cls, spec: Any) -> bool: ...


@runtime_checkable
class NeedsInput(Protocol):
    """A fault that needs more input while it is active: the feed, which otherwise waits for healing, continues meanwhile."""

    @property
    def needs_input(self) -> bool: ...


@runtime_checkable
class Watches(Protocol):
    """A fault that must observe the run before its position: called before the pipeline starts, and changes nothing."""

    def watch(self, context: Any) -> None: ...


@runtime_checkable
class TakesTurns(Protocol):
    """A kind of which only one fault can be active at a time: a second one would wait until the first one's batch is over."""

    @classmethod
    def takes_turns(cls) -> str:
        """Why, worded to follow "already"."""


@runtime_checkable
class ReplacesJob(Protocol):
    """A kind that replaces the job: until it strikes, the job is started as `first_pipeline` says."""

    @classmethod
    def first_pipeline(cls, spec: Any, scenario: Scenario) -> PipelineSpec: ...


EXECUTORS = "the executors' processes"
"""What a fault in the middle of a task must control; only an external Spark cluster does not give it."""
EXECUTORS_NETWORK = "the executors' network"
"""What a partition of an executor must control; only executors in containers have a network of their own."""


@runtime_checkable
class NeedsControl(Protocol):
    """A kind that, for some or all of its specs, kills, stops or isolates a service itself, not the job's connections to it.

    It cannot be used where that service is external.
    """

    @classmethod
    def needs_control(cls, spec: Any) -> str | None:
        """What must be under control, worded to follow "needs control of"; None if this spec needs none."""


def first_pipeline(scenario: Scenario) -> PipelineSpec | None:
    """How the job is started until a fault replaces it; None if no fault does."""
    for spec in scenario.chaos:
        kind = fault_of(spec)
        if isinstance(kind, ReplacesJob):
            return kind.first_pipeline(spec, scenario)
    return None


def needs_control(spec: AnyFaultSpec) -> str | None:
    """What a fault must control besides the job and its connections; None if nothing."""
    kind = fault_of(spec)
    return kind.needs_control(spec) if isinstance(kind, NeedsControl) else None


def fault_of(spec: AnyFaultSpec) -> type[FaultOf[Any, Any]]:
    """The class that implements a spec's kind of fault, for its target and at its point."""
    return faults.of(spec.pipeline).get(spec.fault, spec.target, spec.at.described()["point"])


def reads_frames(specs: Iterable[AnyFaultSpec]) -> bool:
    """Whether one of these faults strikes at a request or an answer."""
    kinds = ((fault_of(spec), spec) for spec in specs)
    return any(isinstance(kind, ReadsFrames) and kind.reads_frames(spec) for kind, spec in kinds)


def needs_proxy(scenario: Scenario) -> bool:
    """Whether the pipeline's connections must pass through the protocol proxy: for a fault, or for several inputs.

    A Spark query asks for the end offsets of one topic after the other; see `onceproof.pipeline.list_offsets`.
    """
    listed = list(scenario.chaos)
    kinds = ((fault_of(spec), spec) for spec in listed)
    notes = any(isinstance(kind, NotesRequests) and kind.notes_requests(spec) for kind, spec in kinds)
    return len(scenario.input) > 1 or reads_frames(listed) or notes


def strikes_tasks(spec: FaultSpec) -> bool:
    """Whether it strikes a process in the middle of a task; Spark's event log on the task attempts then proves the hit."""
    return spec.at.point is Point.IN_TASKS


def strikes_at(spec: FaultSpec) -> Point:
    """The point at which the controller calls the fault: its own, or the batch's plan if the fault reads the batch's frames."""
    return Point.AFTER_OFFSET_LOG if reads_frames([spec]) else spec.at.point


faults: Registry[type[FaultOf[Any, Any]]] = kinds.faults.requires(FaultOf, Spec=AnyFaultSpec)
