"""Stall: a driver is stopped, a second one takes over on the same checkpoint, and the first wakes up again: the zombie.

SIGSTOP of the driver's whole session (Python and JVM), as a long garbage collection or a paused virtual machine; then a
second driver, as from a cluster that takes it for dead; SIGCONT once the second has committed a batch of its own. Spark's
checkpoint does not fence the sink: the first finishes its batch, and learns of its successor only at its next log entry
(SPARK-21145; M. Kleppmann, *Designing Data-Intensive Applications*, chapter 8, on fencing tokens).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from onceproof.chaos.crash.broker import BrokerAway, Who
from onceproof.chaos.stall.task import TaskStall
from onceproof.faults.by_target import HandedOver, ignored_problems
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults
from onceproof.faults.evidence.sink_state import sink_state
from onceproof.faults.job import Job, Try, at_checkpoint
from onceproof.faults.placement import LeaderOf, instruments_of, placement, point_problems
from onceproof.faults.takeover import PLACES, Takeover, batch_problems
from onceproof.faults.tasks import TASK_TARGETS, TaskFrame, frame_of_no_task
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.stack.processes import procfs
from onceproof.stack.processes.owner import Service


class StallSpec(FaultSpec):
    fault: Literal["stall"]
    target: Literal["driver", "executor", "python-worker", "broker", "controller"]
    leader_of: LeaderOf | None = Field(None, description="broker: TOPIC/PARTITION whose leader is meant")
    coordinator_of: str | None = Field(None, description="broker: which coordinates this transactional.id")
    frame: TaskFrame | None = Field(
        None, description="executor, python-worker: who sends this frame in a task is struck"
    )


def _handed_over(spec: StallSpec) -> HandedOver | None:
    """None for a driver."""
    if spec.target in TASK_TARGETS:
        problems = partial(TaskStall.problems, spec, spec.frame)
        return HandedOver(
            TaskStall(spec, spec.frame),
            problems,
            partial(TaskStall.placement, spec),
            reads_frames=True,
            takes_frame=True,
        )
    if spec.target in ("broker", "controller"):
        who = Who(spec.leader_of, spec.coordinator_of, spec.target == "controller")
        problems = partial(BrokerAway.problems, spec, who)
        return HandedOver(
            BrokerAway(spec, who, "stopped"), problems, partial(BrokerAway.placement, spec, who, "stopped")
        )
    return None


@faults.register("stall")
class Stall:
    """The driver pauses, is replaced, and wakes when its successor has gone on: what it writes then is a zombie's."""

    Spec: ClassVar[type[FaultSpec]] = StallSpec
    about: ClassVar[str] = (
        "SIGSTOP of the driver, or of who runs a task, while another takes over, then SIGCONT: the zombie; "
        "or of a broker or the controller"
    )

    def __init__(self, spec: StallSpec) -> None:
        self._spec = spec
        self._takeover: Takeover | None = None
        self._other = handed.to if (handed := _handed_over(spec)) is not None else None

    @classmethod
    def reads_frames(cls, spec: StallSpec) -> bool:
        handed = _handed_over(spec)
        return handed is not None and handed.reads_frames

    @classmethod
    def problems(cls, spec: StallSpec, scenario: Scenario) -> list[SpecProblem]:
        handed = _handed_over(spec)
        if spec.frame is not None and (handed is None or not handed.takes_frame):
            return frame_of_no_task(spec.target)
        if handed is not None:
            named = {"leader_of": spec.leader_of, "coordinator_of": spec.coordinator_of}
            return handed.problems(scenario) + ignored_problems(spec.target, **named)
        if spec.leader_of is not None or spec.coordinator_of is not None:
            loc = "leader_of" if spec.leader_of is not None else "coordinator_of"
            return [SpecProblem((loc,), "a driver is no broker", f"remove {loc}, or set target: broker")]
        return point_problems(spec, PLACES) + batch_problems(spec, scenario)

    @classmethod
    def placement(cls, spec: StallSpec, scenario: Scenario) -> Placement:
        if (handed := _handed_over(spec)) is not None:
            return handed.placement(scenario)
        proof = (
            f"batch {spec.at.batch} was open when the driver was stopped; a second driver committed it and a batch of its "
            "own; then the first went on, and ended; the sinks before and after"
        )
        return placement(spec.at.point, proof, scenario)

    @classmethod
    def tries(cls, job: Job) -> Iterable[Try]:
        return at_checkpoint(job, PLACES, {"target": "driver"})

    @property
    def needs_input(self) -> bool:
        """Until the successor has planned a batch of its own: then the feed waits until the zombie is gone."""
        return self._takeover is not None and self._takeover.needs_input

    def matches(self, seen: Occurrence) -> bool:
        if self._other is not None:
            return self._other.matches(seen)
        return seen.point is self._spec.at.point and seen.instrument in instruments_of(seen.point)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        if self._other is not None:
            self._other.strike(context, seen)
            return
        self._takeover = Takeover(context, seen, stopped=True)
        context.timeline.emit("driver.stalled", start=self._takeover.start, query=seen.query, batch=seen.batch)
        if seen.release is not None:
            seen.release()  # it waits for an answer that it can read only when it is awake

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        if self._other is not None:
            return self._other.prove(context, seen)
        assert self._takeover is not None
        taken, n = self._takeover, seen.batch
        if not taken.was_open:
            return Proof(False, (f"batch {n} was not open any more when the driver was stopped",))
        words = [
            f"driver start {taken.start} was stopped at {seen.point} of batch {n}: offsets/{n} there, commits/{n} missing"
        ]
        gone_on, said = taken.wait()
        words.append(said)
        if not gone_on:
            return Proof(False, tuple(words))
        before = sink_state(context.stack)
        if not _stands(taken.first):
            return Proof(
                False, (*words, f"driver start {taken.start} was not stopped any more: somebody woke or ended it")
            )
        return taken.resume_first(taken.first.thaw, before, words, how="awake again")

    def heal(self, context: FaultContext) -> None:
        if self._other is not None:
            self._other.heal(context)
        if self._takeover is not None:
            self._takeover.end()


def _stands(zombie: Service) -> bool:
    """Whether it is there, and nothing of it runs."""
    of_session = [one.pid for one in procfs.table().values() if one.session == zombie.pid]
    return zombie.is_running() and all(map(procfs.is_stopped, of_session))
