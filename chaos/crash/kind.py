"""Crash: SIGKILL of the driver (JVM and Python together), of a broker, of an executor or Python worker, or of Postgres.

Healed by a restart: ours for a broker, the supervisor's for a driver, Spark's for what runs its tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from onceproof.chaos.crash.broker import BrokerAway, Who
from onceproof.chaos.crash.driver import DriverCrash
from onceproof.chaos.crash.leader import InSync, LeaderCrash
from onceproof.chaos.crash.postgres import POSTGRES_TARGETS, PostgresCrash
from onceproof.chaos.crash.task import TaskCrash
from onceproof.faults.by_target import ByTarget, HandedOver, ignored_problems
from onceproof.faults.contract import Placement, SpecProblem, faults
from onceproof.faults.job import Job, Try, at_checkpoint
from onceproof.faults.placement import GATED, PARKED, WATCHED, LeaderOf
from onceproof.faults.tasks import TASK_TARGETS, TaskFrame, frame_of_no_task
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point


class CrashSpec(FaultSpec):
    fault: Literal["crash"]
    target: Literal["driver", "broker", "executor", "python-worker", "controller", "postgres", "postgres-backend"]
    leader_of: LeaderOf | None = Field(None, description="broker: TOPIC/PARTITION whose leader is meant")
    coordinator_of: str | None = Field(None, description="broker: which coordinates this transactional.id")
    in_sync: InSync | None = Field(
        None,
        description="broker, in-tasks: it dies when it is the only replica in sync; by default while all are, as far as known",
    )
    frame: TaskFrame | None = Field(
        None,
        description="executor, python-worker: who sends this frame in a task is struck; "
        "postgres, postgres-backend: the COMMIT that is about to come",
    )


def _handed_over(spec: CrashSpec) -> HandedOver:
    in_tasks = spec.at.point is Point.IN_TASKS
    if spec.target in TASK_TARGETS or (spec.target == "driver" and in_tasks):
        problems = partial(TaskCrash.problems, spec, spec.frame)
        return HandedOver(
            TaskCrash(spec, spec.frame),
            problems,
            partial(TaskCrash.placement, spec),
            reads_frames=True,
            takes_frame=True,
        )
    if spec.target in POSTGRES_TARGETS:
        problems = partial(PostgresCrash.problems, spec, spec.frame)
        placed = partial(PostgresCrash.placement, spec)
        return HandedOver(PostgresCrash(spec, spec.frame), problems, placed, reads_frames=True, takes_frame=True)
    if spec.target == "broker" and in_tasks:
        problems = partial(LeaderCrash.problems, spec, spec.leader_of, spec.in_sync)
        placed = partial(LeaderCrash.placement, spec, spec.leader_of, spec.in_sync)
        return HandedOver(LeaderCrash(spec, spec.leader_of or "", spec.in_sync), problems, placed, reads_frames=True)
    if spec.target == "driver":
        return HandedOver(DriverCrash(spec), partial(DriverCrash.problems, spec), partial(DriverCrash.placement, spec))
    who = Who(spec.leader_of, spec.coordinator_of, spec.target == "controller")
    also = (Point.IN_TASKS,) if spec.leader_of is not None else ()  # where `LeaderCrash` strikes it
    problems = partial(BrokerAway.problems, spec, who, also=also)
    return HandedOver(BrokerAway(spec, who, "killed"), problems, partial(BrokerAway.placement, spec, who, "killed"))


@faults.register("crash")
class Crash(ByTarget):
    """The driver's or a broker's processes die at once, as from a kernel's out-of-memory killer or a lost machine."""

    Spec: ClassVar[type[FaultSpec]] = CrashSpec
    about: ClassVar[str] = (
        "SIGKILL of the driver (JVM and Python), of a broker, of the controller, of an executor or Python worker, of Postgres "
        "or of one of its sessions"
    )

    def __init__(self, spec: CrashSpec) -> None:
        super().__init__(_handed_over(spec).to)

    @classmethod
    def reads_frames(cls, spec: CrashSpec) -> bool:
        return _handed_over(spec).reads_frames

    @classmethod
    def problems(cls, spec: CrashSpec, scenario: Scenario) -> list[SpecProblem]:
        handed = _handed_over(spec)
        if spec.frame is not None and not handed.takes_frame:
            return frame_of_no_task(spec.target)
        if spec.in_sync is not None and not (spec.target == "broker" and spec.at.point is Point.IN_TASKS):
            message = "only a leader with records of the batch that others lack can be waited for to be alone in sync"
            return [SpecProblem(("in_sync",), message, "remove in_sync, or set target: broker and point: in-tasks")]
        named = {"leader_of": spec.leader_of, "coordinator_of": spec.coordinator_of}
        return handed.problems(scenario) + ignored_problems(spec.target, **named) + _passed_over(spec)

    @classmethod
    def placement(cls, spec: CrashSpec, scenario: Scenario) -> Placement:
        return _handed_over(spec).placement(scenario)

    @classmethod
    def tries(cls, job: Job) -> Iterator[Try]:
        """The driver's at the checkpoint; that of Postgres, or of a session there, at each sink's COMMIT."""
        parked = any(query.parks for query in job.queries)  # else crash-at-frame is before the commit, of any job
        yield from at_checkpoint(job, (*GATED, *WATCHED, *(PARKED if parked else ())), {"target": "driver"})
        for sink in job.commits:
            if sink.target == "postgres":
                query = sink.query if len(job.queries) > 1 else None
                for target in POSTGRES_TARGETS:
                    settings = {"target": target, "frame": dict(sink.frame)}
                    yield Try(Point.BEFORE_SINK_COMMIT, settings, query, words=sink.words)


def _passed_over(spec: CrashSpec) -> list[SpecProblem]:
    """What says nothing to who strikes here, and would be passed over in silence."""
    problems = []
    if spec.target in POSTGRES_TARGETS and spec.frame is not None and spec.frame.service == "kafka":
        message = "the COMMIT that is about to come is one of Postgres"
        problems.append(SpecProblem(("frame", "service"), message, "remove service"))
    if spec.target == "broker" and spec.at.point is Point.IN_TASKS and spec.coordinator_of is not None:
        message = "in the middle of tasks the broker is chosen by the partition that it leads"
        problems.append(SpecProblem(("coordinator_of",), message, "remove it, or choose another point"))
    return problems
