"""Crash: SIGKILL of the driver (JVM and Python together), of a broker, of an executor or Python worker, or of Postgres.

Healed by a restart: ours for a broker, the supervisor's for a driver, Spark's for what runs its tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic import Field

from onceproof.broker_away import BrokerAway, Who
from onceproof.conductor import Site
from onceproof.faults import Occurrence, Placement, Proof, SpecProblem, faults
from onceproof.leader_crash import LeaderCrash
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
from onceproof.task_faults import TASK_TARGETS, TaskFrame
from onceproof.waiting import wait_until

_ELECTION_S = 30.0
"""The fast preset elects within 3 s; ten times that is a cluster that is not going to."""


#: Targets that are struck by way of a frame, and who does it.
_OTHERS: dict[str, type[TaskCrash] | type[PostgresCrash]] = {
    **dict.fromkeys(TASK_TARGETS, TaskCrash),
    **dict.fromkeys(POSTGRES_TARGETS, PostgresCrash),
}


class CrashSpec(FaultSpec):
    fault: Literal["crash"]
    target: Literal["driver", "broker", "executor", "python-worker", "controller", "postgres", "postgres-backend"]
    leader_of: LeaderOf | None = None
    coordinator_of: str | None = Field(None, description="broker: which coordinates this transactional.id")
    frame: TaskFrame | None = Field(
        None,
        description="executor, python-worker: who sends this frame in a task is struck; "
        "postgres, postgres-backend: the COMMIT that is about to come",
    )


def _is_of_leader(spec: CrashSpec) -> bool:
    """A leader that alone has records of the batch: it dies in the middle of it."""
    return spec.target == "broker" and spec.at.point is Point.IN_TASKS


def _is_of_node(spec: CrashSpec) -> bool:
    return spec.target == "controller" or (spec.target == "broker" and spec.coordinator_of is not None)


def _who(spec: CrashSpec) -> Who:
    return Who(spec.leader_of, spec.coordinator_of, spec.target == "controller")


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
        other = _OTHERS.get(spec.target)
        self._other: TaskCrash | PostgresCrash | LeaderCrash | BrokerAway | None = None
        if other is not None:
            self._other = other(spec, spec.frame)
        elif _is_of_leader(spec):
            self._other = LeaderCrash(spec, spec.leader_of or "")
        elif _is_of_node(spec):
            self._other = BrokerAway(spec, _who(spec), "killed")

    @classmethod
    def reads_frames(cls, spec: CrashSpec) -> bool:
        return spec.target in _OTHERS or _is_of_leader(spec)

    @classmethod
    def problems(cls, spec: CrashSpec, scenario: Scenario) -> list[SpecProblem]:
        other = _OTHERS.get(spec.target)
        if other is not None:
            return other.problems(spec, spec.frame, scenario)
        if spec.frame is not None:
            message = f"a frame says which task is struck; {spec.target} is struck at a point"
            return [SpecProblem(("frame",), message, f"remove it, or set target: {' or '.join(_OTHERS)}")]
        if _is_of_leader(spec):
            return LeaderCrash.problems(spec, spec.leader_of, scenario)
        if _is_of_node(spec):
            return BrokerAway.problems(spec, _who(spec), scenario)
        if spec.target == "broker":
            # A batch must be open when the broker goes; after its commit log none is.
            places = tuple(p for p in (*WATCHED, Point.IN_TASKS, *PARKED) if p is not Point.AFTER_COMMIT_LOG)
            return point_problems(spec, places) + leader_problems(spec.leader_of, scenario)
        problems = point_problems(spec, (*GATED, *WATCHED, *PARKED))
        if spec.at.point is Point.STATE_PARTLY_COMMITTED and not spec.at.batch:
            message = "batch 0 has no state before it by which to tell how much of it was written"
            problems.append(SpecProblem(("at", "batch"), message, "choose batch 1 or a later one"))
        if spec.leader_of is not None:
            problems.append(SpecProblem(("leader_of",), "a driver leads no partition", "remove leader_of"))
        if spec.coordinator_of is not None:
            message = "a driver coordinates no transactions"
            problems.append(SpecProblem(("coordinator_of",), message, "remove coordinator_of, or set target: broker"))
        return problems

    @classmethod
    def placement(cls, spec: CrashSpec, scenario: Scenario) -> Placement:
        other = _OTHERS.get(spec.target)
        if other is not None:
            return other.placement(spec, scenario)
        if _is_of_leader(spec):
            return LeaderCrash.placement(spec, spec.leader_of, scenario)
        if _is_of_node(spec):
            return BrokerAway.placement(spec, _who(spec), "killed", scenario)
        if spec.target == "driver":
            replay = {
                Point.BEFORE_OFFSET_LOG: f", and batch {spec.at.batch} planned and committed afterwards",
                Point.AFTER_COMMIT_LOG: "",
            }.get(spec.at.point, f", and the replay of batch {spec.at.batch}")
            return placement(spec.at.point, f"offsets/ and commits/ as they were left, the restart{replay}", scenario)
        return placement(spec.at.point, f"the process is gone and another broker leads {spec.leader_of}", scenario)

    @classmethod
    def tries(cls, job: Job) -> Iterable[Try]:
        return at_checkpoint(job, (*GATED, *WATCHED, *PARKED), {"target": "driver"})

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


def _there(exists: bool) -> str:
    return "there" if exists else "missing"
