"""Crash: SIGKILL of the driver (JVM and Python together), of a broker, of an executor or Python worker, or of Postgres.

Healed by a restart: ours for a broker, the supervisor's for a driver, Spark's for what runs its tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from onceproof.broker_away import BrokerAway, Who
from onceproof.by_target import HandedOver, ignored_problems
from onceproof.conductor import Site
from onceproof.faults import Occurrence, Placement, Proof, SpecProblem, faults
from onceproof.leader_crash import InSync, LeaderCrash
from onceproof.placing import (
    GATED,
    PARKED,
    RESTART_S,
    WATCHED,
    LeaderOf,
    committed,
    instruments_of,
    leader_problems,
    placement,
    planned,
    point_problems,
    split_leader_of,
    state_written,
)
from onceproof.points import Point
from onceproof.postgres_crash import POSTGRES_TARGETS, PostgresCrash
from onceproof.qualify.job import Job, Try, at_checkpoint
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.stack.api import Leadership
from onceproof.task_crash import TaskCrash
from onceproof.task_faults import TASK_TARGETS, TaskFrame, frame_of_no_task
from onceproof.waiting import wait_until

_ELECTION_S = 30.0
"""The fast preset elects within 3 s; ten times that is a cluster that is not going to."""


class CrashSpec(FaultSpec):
    fault: Literal["crash"]
    target: Literal["driver", "broker", "executor", "python-worker", "controller", "postgres", "postgres-backend"]
    leader_of: LeaderOf | None = None
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


def _handed_over(spec: CrashSpec) -> HandedOver | None:
    """None for a driver at a point of the checkpoint or of a sink, and for a broker by what it leads."""
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
    if spec.target == "controller" or (spec.target == "broker" and spec.coordinator_of is not None):
        who = Who(spec.leader_of, spec.coordinator_of, spec.target == "controller")
        problems = partial(BrokerAway.problems, spec, who)
        return HandedOver(BrokerAway(spec, who, "killed"), problems, partial(BrokerAway.placement, spec, who, "killed"))
    return None


@faults.register("crash")
class Crash:
    """The driver's or a broker's processes die at once, as from a kernel's out-of-memory killer or a lost machine."""

    Spec: ClassVar[type[FaultSpec]] = CrashSpec
    about: ClassVar[str] = (
        "SIGKILL of the driver (JVM and Python), of the broker that leads a partition, or of who runs a task"
    )

    def __init__(self, spec: CrashSpec) -> None:
        self._spec = spec
        self._start = 0
        self._state = (False, False)
        self._next_planned = False
        self._stores = (0, 0)
        self._before: Leadership | None = None
        self._other = handed.to if (handed := _handed_over(spec)) is not None else None

    @classmethod
    def reads_frames(cls, spec: CrashSpec) -> bool:
        handed = _handed_over(spec)
        return handed is not None and handed.reads_frames

    @classmethod
    def problems(cls, spec: CrashSpec, scenario: Scenario) -> list[SpecProblem]:
        handed = _handed_over(spec)
        if spec.frame is not None and (handed is None or not handed.takes_frame):
            return frame_of_no_task(spec.target)
        if spec.in_sync is not None and not (spec.target == "broker" and spec.at.point is Point.IN_TASKS):
            message = "only a leader with records of the batch that others lack can be waited for to be alone in sync"
            return [SpecProblem(("in_sync",), message, "remove in_sync, or set target: broker and point: in-tasks")]
        if handed is not None:
            named = {"leader_of": spec.leader_of, "coordinator_of": spec.coordinator_of}
            return handed.problems(scenario) + ignored_problems(spec.target, **named) + _passed_over(spec)
        if spec.target == "broker":
            # A batch must be open when the broker goes; after its commit log none is.
            places = tuple(p for p in (*WATCHED, Point.IN_TASKS, *PARKED) if p is not Point.AFTER_COMMIT_LOG)
            return point_problems(spec, places) + leader_problems(spec.leader_of, scenario)
        problems = point_problems(spec, (*GATED, *WATCHED, *PARKED))
        if spec.at.point is Point.STATE_PARTLY_COMMITTED and not spec.at.batch:
            message = "batch 0 has no state before it by which to tell how much of it was written"
            problems.append(SpecProblem(("at", "batch"), message, "choose batch 1 or a later one"))
        if spec.at.point is Point.STATE_PARTLY_COMMITTED and scenario.stack.spark is not None:
            message = "executors of a standalone Spark write their state without waiting for each other's"
            problems.append(SpecProblem(("at", "point"), message, "leave spark out of the stack for this point"))
        if spec.leader_of is not None:
            problems.append(SpecProblem(("leader_of",), "a driver leads no partition", "remove leader_of"))
        if spec.coordinator_of is not None:
            message = "a driver coordinates no transactions"
            problems.append(SpecProblem(("coordinator_of",), message, "remove coordinator_of, or set target: broker"))
        return problems

    @classmethod
    def placement(cls, spec: CrashSpec, scenario: Scenario) -> Placement:
        if (handed := _handed_over(spec)) is not None:
            return handed.placement(scenario)
        if spec.target == "driver":
            replay = {
                Point.BEFORE_OFFSET_LOG: f", and batch {spec.at.batch} planned and committed afterwards",
                Point.AFTER_COMMIT_LOG: "",
            }.get(spec.at.point, f", and the replay of batch {spec.at.batch}")
            return placement(spec.at.point, f"offsets/ and commits/ as they were left, the restart{replay}", scenario)
        return placement(spec.at.point, f"the process is gone and another broker leads {spec.leader_of}", scenario)

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

    def matches(self, seen: Occurrence) -> bool:
        if self._other is not None:
            return self._other.matches(seen)
        return seen.point is self._spec.at.point and seen.instrument in instruments_of(seen.point)

    def strike(self, site: Site, seen: Occurrence) -> None:
        if self._other is not None:
            self._other.strike(site, seen)
            return
        if self._spec.target == "driver":
            self._start = site.job.kill_driver()
            # What the kill left behind decides, and it must be read before the next driver writes anything.
            self._state = (planned(site, seen.query, seen.batch), committed(site, seen.query, seen.batch))
            self._next_planned = planned(site, seen.query, seen.batch + 1)
            self._stores = state_written(site, seen.query, seen.batch)
            return
        assert self._spec.leader_of is not None
        topic, partition = split_leader_of(self._spec.leader_of)
        with site.job.frozen():
            self._before = site.stack.kafka.leader(topic, partition)
            site.stack.kafka.kill_broker(self._before.broker)
            self._state = (planned(site, seen.query, seen.batch), committed(site, seen.query, seen.batch))
        if seen.release is not None:
            seen.release()

    def prove(self, site: Site, seen: Occurrence) -> Proof:
        if self._other is not None:
            return self._other.prove(site, seen)
        return self._prove_driver(site, seen) if self._spec.target == "driver" else self._prove_broker(site, seen)

    def _prove_driver(self, site: Site, seen: Occurrence) -> Proof:
        offsets, commits = self._state
        n = seen.batch
        left = f"left behind: offsets/{n} {_there(offsets)}, commits/{n} {_there(commits)}"
        wanted_commit = self._spec.at.point is Point.AFTER_COMMIT_LOG
        wanted_plan = self._spec.at.point is not Point.BEFORE_OFFSET_LOG
        if (offsets, commits) != (wanted_plan, wanted_commit) or (wanted_commit and self._next_planned):
            return Proof(False, (left, f"that is not the state of {self._spec.at.point}"))
        if self._spec.at.point is Point.STATE_PARTLY_COMMITTED:
            written, stores = self._stores
            left = f"{left}, state of batch {n} in {written} of {stores} state stores"
            if not 0 < written < stores:
                return Proof(False, (left, f"that is not the state of {self._spec.at.point}"))
        wait_until(
            f"the driver to be started again after the crash in batch {n}",
            lambda: site.job.restarted_since(self._start),
            deadline_s=RESTART_S,
        )
        if wanted_commit:
            return Proof(True, (left, f"offsets/{n + 1} missing", "the driver was started again"))
        wait_until(
            f"batch {n} to be committed",
            lambda: committed(site, seen.query, n),
            deadline_s=RESTART_S,
            explain=lambda: f"driver start {site.job.current_start}, commits/{n} missing",
        )
        again = "replayed" if wanted_plan else "planned afterwards"
        return Proof(True, (left, "the driver was started again", f"batch {n} was {again} and committed"))

    def _prove_broker(self, site: Site, seen: Occurrence) -> Proof:
        assert self._before is not None and self._spec.leader_of is not None
        before, kafka = self._before, site.stack.kafka
        topic, partition = split_leader_of(self._spec.leader_of)
        if self._state != (True, False):
            return Proof(False, (f"batch {seen.batch} was not open any more when broker {before.broker} was killed",))
        if kafka.is_running(before.broker):
            return Proof(False, (f"broker {before.broker} is still running",))

        def moved() -> Leadership | None:
            now = kafka.leader(topic, partition, asking_not=before.broker)
            return now if now.broker not in (before.broker, -1) and now.epoch > before.epoch else None

        after = wait_until(f"another broker to lead {self._spec.leader_of}", moved, deadline_s=_ELECTION_S)
        self.heal(site)
        wait_until(
            f"batch {seen.batch} to be committed", lambda: committed(site, seen.query, seen.batch), deadline_s=RESTART_S
        )
        return Proof(
            True,
            (
                f"broker {before.broker} was gone while batch {seen.batch} was open",
                f"leadership of {self._spec.leader_of} moved from broker {before.broker} (epoch {before.epoch}) "
                f"to broker {after.broker} (epoch {after.epoch})",
                f"batch {seen.batch} was committed afterwards",
            ),
        )

    def heal(self, site: Site) -> None:
        if self._other is not None:
            self._other.heal(site)
        if self._before is not None and not site.stack.kafka.is_running(self._before.broker):
            site.stack.kafka.restart_broker(self._before.broker)


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


def _there(exists: bool) -> str:
    return "there" if exists else "missing"
