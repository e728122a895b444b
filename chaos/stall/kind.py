"""Stall: a driver is stopped, a second one takes over the same checkpoint, and the first one resumes as a zombie.

The fault sends SIGSTOP to the driver's whole session (Python and JVM), which resembles a long garbage collection or a paused
virtual machine. It then starts a second driver, as a cluster does that takes the first for dead, and sends SIGCONT once the
second has committed a batch of its own. Spark's checkpoint does not fence the sink: the first driver finishes its batch, and
learns of its successor only at its next log entry (SPARK-21145; M. Kleppmann, *Designing Data-Intensive Applications*,
chapter 8, on fencing tokens).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from onceproof.chaos.crash.broker import BrokerAway, NodeChoice
from onceproof.chaos.stall.task import TaskStall
from onceproof.faults.by_target import TargetStriker, ignored_problems
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed
from onceproof.faults.evidence.sink_state import sink_state
from onceproof.faults.job import Job, Try, at_checkpoint
from onceproof.faults.placement import LeaderOf, instruments_of, placement_at, point_problems
from onceproof.faults.takeover import POINTS, Takeover, batch_problems
from onceproof.faults.tasks import TASK_TARGETS, TaskFrame, frame_of_no_task
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.stack.processes import procfs
from onceproof.stack.processes.owner import Service


class StallSpec(FaultSpec):
    fault: Literal["stall"]
    target: Literal["driver", "executor", "python-worker", "broker", "controller"]
    leader_of: LeaderOf | None = Field(None, description="broker: TOPIC/PARTITION whose leader is struck")
    coordinator_of: str | None = Field(None, description="broker: the transactional.id whose coordinator is struck")
    frame: TaskFrame | None = Field(
        None, description="executor, python-worker: the process that sends this frame in a task is struck"
    )


def _striker_for(spec: StallSpec) -> TargetStriker | None:
    """The striker for the spec's target; None for the driver, which `Stall` strikes itself."""
    if spec.target in TASK_TARGETS:
        problems = partial(TaskStall.problems, spec, spec.frame)
        return TargetStriker(
            TaskStall(spec, spec.frame),
            problems,
            partial(TaskStall.placement, spec),
            reads_frames=True,
            takes_frame=True,
        )
    if spec.target in ("broker", "controller"):
        choice = NodeChoice(spec.leader_of, spec.coordinator_of, spec.target == "controller")
        problems = partial(BrokerAway.problems, spec, choice)
        return TargetStriker(
            BrokerAway(spec, choice, "stopped"), problems, partial(BrokerAway.placement, spec, choice, "stopped")
        )
    return None


@faults.register("stall")
class Stall:
    """The driver pauses, is replaced, and resumes as a zombie once its successor has committed a batch of its own."""

    Spec: ClassVar[type[FaultSpec]] = StallSpec
    about: ClassVar[str] = (
        "SIGSTOP of the driver, or of a process in the middle of a task, while another takes over, then SIGCONT (a zombie); "
        "or SIGSTOP and SIGCONT of a broker or the controller"
    )

    def __init__(self, spec: StallSpec) -> None:
        self._spec = spec
        self._takeover: Takeover | None = None
        self._striker = chosen.striker if (chosen := _striker_for(spec)) is not None else None

    @classmethod
    def reads_frames(cls, spec: StallSpec) -> bool:
        chosen = _striker_for(spec)
        return chosen is not None and chosen.reads_frames

    @classmethod
    def needs_control(cls, spec: StallSpec) -> str | None:
        if spec.coordinator_of is not None:
            return "the brokers' files"
        return "the brokers" if spec.target in ("broker", "controller") else None

    @classmethod
    def problems(cls, spec: StallSpec, scenario: Scenario) -> list[SpecProblem]:
        chosen = _striker_for(spec)
        if spec.frame is not None and (chosen is None or not chosen.takes_frame):
            return frame_of_no_task(spec.target)
        if chosen is not None:
            named = {"leader_of": spec.leader_of, "coordinator_of": spec.coordinator_of}
            return chosen.problems(scenario) + ignored_problems(spec.target, **named)
        if spec.leader_of is not None or spec.coordinator_of is not None:
            loc = "leader_of" if spec.leader_of is not None else "coordinator_of"
            return [SpecProblem((loc,), "a driver is not a broker", f"remove {loc}, or set target: broker")]
        return point_problems(spec, POINTS) + batch_problems(spec, scenario)

    @classmethod
    def placement(cls, spec: StallSpec, scenario: Scenario) -> Placement:
        if (chosen := _striker_for(spec)) is not None:
            return chosen.placement(scenario)
        proof = (
            f"batch {spec.at.batch} was open when the driver was stopped; a second driver committed it and a batch of its "
            "own; then the first one resumed and ended; the sinks' content before and after that"
        )
        return placement_at(spec.at.point, proof, scenario)

    @classmethod
    def tries(cls, job: Job) -> Iterable[Try]:
        return at_checkpoint(job, POINTS, {"target": "driver"})

    @property
    def needs_input(self) -> bool:
        """True until the successor has planned a batch of its own; then the feed waits until the zombie is gone."""
        return self._takeover is not None and self._takeover.needs_input

    def matches(self, seen: Occurrence) -> bool:
        if self._striker is not None:
            return self._striker.matches(seen)
        return seen.point is self._spec.at.point and seen.instrument in instruments_of(seen.point)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        if self._striker is not None:
            self._striker.strike(context, seen)
            return
        self._takeover = Takeover(context, seen, stopped=True)
        context.timeline.emit("driver.stalled", start=self._takeover.start, query=seen.query, batch=seen.batch)
        if seen.release is not None:
            seen.release()  # the sink is stopped as well, and reads the answer only after SIGCONT

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        if self._striker is not None:
            return self._striker.prove(context, seen)
        assert self._takeover is not None
        takeover, n = self._takeover, seen.batch
        if not takeover.was_open:
            return missed(f"batch {n} was no longer open when the driver was stopped")
        state = f"offsets/{n} written, commits/{n} missing"
        evidence = [f"driver start {takeover.start} was stopped at {seen.point} of batch {n}: {state}"]
        succeeded, sentence = takeover.wait_for_successor()
        evidence.append(sentence)
        if not succeeded:
            return missed(*evidence)
        before = sink_state(context.stack)
        if not _is_stopped(takeover.first):
            why = f"driver start {takeover.start} was no longer stopped: another process had resumed or killed it"
            return missed(*evidence, why)
        return takeover.resume_first(takeover.first.thaw, before, evidence, after="after SIGCONT")

    def heal(self, context: FaultContext) -> None:
        if self._striker is not None:
            self._striker.heal(context)
        if self._takeover is not None:
            self._takeover.end()


def _is_stopped(zombie: Service) -> bool:
    """Whether the driver exists and all its processes are stopped."""
    of_session = [one.pid for one in procfs.table().values() if one.session == zombie.pid]
    return zombie.is_running() and all(map(procfs.is_stopped, of_session))
