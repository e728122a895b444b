"""Crash: SIGKILL of the driver (JVM and Python together), of a broker, of an executor or Python worker, or of Postgres.

A restart heals it: the fault restarts brokers and Postgres, the supervisor the driver, Spark its executors and workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from onceproof.chaos.crash.broker import BrokerAway, NodeChoice
from onceproof.chaos.crash.driver import DriverCrash
from onceproof.chaos.crash.leader import InSync, LeaderCrash
from onceproof.chaos.crash.postgres import POSTGRES_TARGETS, PostgresCrash
from onceproof.chaos.crash.task import TaskCrash
from onceproof.faults.by_target import ByTarget, TargetStriker, ignored_problems
from onceproof.faults.contract import Placement, SpecProblem, faults
from onceproof.faults.job import Job, Try, at_checkpoint
from onceproof.faults.placement import GATED, PARKED, WATCHED, LeaderOf
from onceproof.faults.tasks import TASK_TARGETS, TaskFrame, frame_of_no_task
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point


class CrashSpec(FaultSpec):
    fault: Literal["crash"]
    target: Literal["driver", "broker", "executor", "python-worker", "controller", "postgres", "postgres-backend"]
    leader_of: LeaderOf | None = Field(None, description="broker: TOPIC/PARTITION whose leader is struck")
    coordinator_of: str | None = Field(None, description="broker: the transactional.id whose coordinator is struck")
    in_sync: InSync | None = Field(
        None,
        description="broker, in-tasks: leader: it dies once it is the only replica in sync; by default it dies while the "
        "controller still counts all replicas as in sync",
    )
    frame: TaskFrame | None = Field(
        None,
        description="executor, python-worker, driver in-tasks: the process whose task sends this frame is struck; "
        "postgres, postgres-backend: the COMMIT at which it is struck",
    )


def _striker_for(spec: CrashSpec) -> TargetStriker:
    in_tasks = spec.at.point is Point.IN_TASKS
    if spec.target in TASK_TARGETS or (spec.target == "driver" and in_tasks):
        problems = partial(TaskCrash.problems, spec, spec.frame)
        return TargetStriker(
            TaskCrash(spec, spec.frame),
            problems,
            partial(TaskCrash.placement, spec),
            reads_frames=True,
            takes_frame=True,
        )
    if spec.target in POSTGRES_TARGETS:
        problems = partial(PostgresCrash.problems, spec, spec.frame)
        placed = partial(PostgresCrash.placement, spec)
        return TargetStriker(PostgresCrash(spec, spec.frame), problems, placed, reads_frames=True, takes_frame=True)
    if spec.target == "broker" and in_tasks:
        problems = partial(LeaderCrash.problems, spec, spec.leader_of, spec.in_sync)
        placed = partial(LeaderCrash.placement, spec, spec.leader_of, spec.in_sync)
        return TargetStriker(LeaderCrash(spec, spec.leader_of or "", spec.in_sync), problems, placed, reads_frames=True)
    if spec.target == "driver":
        return TargetStriker(
            DriverCrash(spec), partial(DriverCrash.problems, spec), partial(DriverCrash.placement, spec)
        )
    choice = NodeChoice(spec.leader_of, spec.coordinator_of, spec.target == "controller")
    also = (Point.IN_TASKS,) if spec.leader_of is not None else ()  # where `LeaderCrash` strikes it
    problems = partial(BrokerAway.problems, spec, choice, also=also)
    return TargetStriker(
        BrokerAway(spec, choice, "killed"), problems, partial(BrokerAway.placement, spec, choice, "killed")
    )


@faults.register("crash")
class Crash(ByTarget):
    """The target's processes die at once, as if killed by the kernel's out-of-memory killer or with their machine."""

    Spec: ClassVar[type[FaultSpec]] = CrashSpec
    about: ClassVar[str] = (
        "SIGKILL of the driver (JVM and Python), of a broker, of the controller, of an executor or Python worker, of Postgres "
        "or of one of its sessions"
    )

    def __init__(self, spec: CrashSpec) -> None:
        super().__init__(_striker_for(spec).striker)

    @classmethod
    def reads_frames(cls, spec: CrashSpec) -> bool:
        return _striker_for(spec).reads_frames

    @classmethod
    def needs_control(cls, spec: CrashSpec) -> str | None:
        if spec.coordinator_of is not None:
            return "the brokers' files"
        return {"broker": "the brokers", "controller": "the brokers", "postgres": "Postgres"}.get(spec.target)

    @classmethod
    def problems(cls, spec: CrashSpec, scenario: Scenario) -> list[SpecProblem]:
        chosen = _striker_for(spec)
        if spec.frame is not None and not chosen.takes_frame:
            return frame_of_no_task(spec.target)
        if spec.in_sync is not None and not (spec.target == "broker" and spec.at.point is Point.IN_TASKS):
            message = "in_sync applies only to a leader that dies in the middle of tasks"
            return [SpecProblem(("in_sync",), message, "remove in_sync, or set target: broker and point: in-tasks")]
        named = {"leader_of": spec.leader_of, "coordinator_of": spec.coordinator_of}
        return chosen.problems(scenario) + ignored_problems(spec.target, **named) + _unused_fields(spec)

    @classmethod
    def placement(cls, spec: CrashSpec, scenario: Scenario) -> Placement:
        return _striker_for(spec).placement(scenario)

    @classmethod
    def tries(cls, job: Job) -> Iterator[Try]:
        """Crashes of the driver at the checkpoint; of Postgres, or of one of its sessions, at each sink's COMMIT."""
        parked = any(
            query.parks for query in job.queries
        )  # otherwise crash-at-frame covers the point before the commit
        yield from at_checkpoint(job, (*GATED, *WATCHED, *(PARKED if parked else ())), {"target": "driver"})
        for sink in job.commits:
            if sink.target == "postgres":
                for target in POSTGRES_TARGETS:
                    settings = {"target": target, "frame": dict(sink.frame)}
                    yield Try(Point.BEFORE_SINK_COMMIT, settings, job.at_query(sink.query), words=sink.words)


def _unused_fields(spec: CrashSpec) -> list[SpecProblem]:
    """Problems for fields that the target's striker would silently ignore."""
    problems = []
    if spec.target in POSTGRES_TARGETS and spec.frame is not None and spec.frame.service == "kafka":
        message = "this crash strikes at a COMMIT, which is a frame of Postgres, not of Kafka"
        problems.append(SpecProblem(("frame", "service"), message, "remove service"))
    if spec.target == "broker" and spec.at.point is Point.IN_TASKS and spec.coordinator_of is not None:
        message = "in the middle of tasks the broker is chosen by the partition that it leads"
        problems.append(SpecProblem(("coordinator_of",), message, "remove coordinator_of, or choose another point"))
    return problems
