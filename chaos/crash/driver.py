"""Crash of the driver (JVM and Python together) at a point of the checkpoint, or where one of onceproof's sinks is parked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed, proven
from onceproof.faults.frames import wait_for_restart
from onceproof.faults.job import Job, Try, at_checkpoint
from onceproof.faults.placement import (
    GATED,
    PARKED,
    RESTART_S,
    WATCHED,
    AtItsPoint,
    committed,
    has_own_file_manager,
    placement_at,
    planned,
    point_problems,
    state_written,
)
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stores.contract import CommitsLikeCheckpoints, store_of


class DriverCrashSpec(FaultSpec):
    fault: Literal["crash"]
    target: Literal["driver"]


@faults.register("crash", "driver")
class DriverCrash(AtItsPoint[DriverCrashSpec]):
    """The driver's processes die at once, as if killed by the kernel's out-of-memory killer or with their machine.

    The supervisor starts the next driver. In the middle of a task, `onceproof.chaos.crash.task` crashes the driver.
    """

    Spec: ClassVar[type[FaultSpec]] = DriverCrashSpec
    about: ClassVar[str] = "SIGKILL of the driver (JVM and Python)"

    def __init__(self, spec: DriverCrashSpec) -> None:
        self._spec = spec
        self._start = 0
        self._struck: tuple[FaultContext, Occurrence] | None = None
        self._state = (False, False)
        self._next_planned = False
        self._stores = (0, 0)

    @classmethod
    def problems(cls, spec: DriverCrashSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = point_problems(spec, (*GATED, *WATCHED, *PARKED, Point.IN_TASKS))
        if spec.at.point is Point.STATE_PARTLY_COMMITTED and not spec.at.batch:
            message = "before batch 0 there are no state files, so how many partitions it has written cannot be known"
            problems.append(SpecProblem(("at", "batch"), message, "choose batch 1 or a later one"))
        return problems

    @classmethod
    def placement(cls, spec: DriverCrashSpec, scenario: Scenario) -> Placement:
        replay = {
            Point.BEFORE_OFFSET_LOG: f", and batch {spec.at.batch} planned and committed afterwards",
            Point.AFTER_COMMIT_LOG: "",
        }.get(spec.at.point, f", and the replay of batch {spec.at.batch}")
        proof = f"offsets/ and commits/ as the crash left them, the restart{replay}"
        log = _log_of_sink(scenario)
        if spec.at.point is not Point.BEFORE_SINK_COMMIT or log is None or has_own_file_manager(scenario):
            return placement_at(spec.at.point, proof, scenario)
        why = (
            f"the driver waits before it creates {log}/{spec.at.batch}: the tasks have written their files, which no log lists "
            "yet; needs Spark's own sink"
        )
        return Placement("exact", "checkpoint file system", why, proof)

    @classmethod
    def tries(cls, job: Job) -> Iterator[Try]:
        # If no sink parks, crash-at-frame covers the point before the commit.
        parked = any(query.parks for query in job.queries)
        return at_checkpoint(job, (*GATED, *WATCHED, *(PARKED if parked else ())), {"target": "driver"})

    def matches(self, seen: Occurrence) -> bool:
        in_its_log = seen.point is self._spec.at.point is Point.BEFORE_SINK_COMMIT and seen.instrument == "checkpoint"
        return in_its_log or super().matches(seen)

    @property
    def needs_input(self) -> bool:
        """True while the next driver may need more input to plan the batch again.

        Spark plans a batch without input again only when there is more input. One with input is planned again at once, and
        the feed waits until it is committed in any case.
        """
        if self._struck is None or self._spec.at.point is not Point.BEFORE_OFFSET_LOG:
            return False
        context, seen = self._struck
        return context.job.restarted_since(self._start) and not planned(context, seen.query, seen.batch)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        # The state that the kill left behind decides; it must be read before the next driver writes anything.
        with context.job.no_start():
            self._start = self._kill(context)
            self._struck = (context, seen)
            self._state = (planned(context, seen.query, seen.batch), committed(context, seen.query, seen.batch))
            self._next_planned = planned(context, seen.query, seen.batch + 1)
            self._stores = state_written(context, seen.query, seen.batch)

    def _kill(self, context: FaultContext) -> int:
        return context.job.kill_driver()

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        offsets, commits = self._state
        n = seen.batch
        left = f"left behind: offsets/{n} {_written(offsets)}, commits/{n} {_written(commits)}"
        wanted_commit = self._spec.at.point is Point.AFTER_COMMIT_LOG
        wanted_plan = self._spec.at.point is not Point.BEFORE_OFFSET_LOG
        if (offsets, commits) != (wanted_plan, wanted_commit) or (wanted_commit and self._next_planned):
            return missed(left, f"that is not the state at {self._spec.at.point}")
        if self._spec.at.point is Point.STATE_PARTLY_COMMITTED:
            written, stores = self._stores
            left = f"{left}, state of batch {n} in {written} of {stores} state stores"
            if not 0 < written < stores:
                return missed(left, f"that is not the state at {self._spec.at.point}")
        restarted = wait_for_restart(context, self._start)
        if wanted_commit:
            return proven(left, f"offsets/{n + 1} missing", restarted)
        wait_until(
            f"batch {n} to be committed",
            lambda: committed(context, seen.query, n),
            deadline_s=RESTART_S,
            explain=lambda: f"driver start {context.job.current_start}, {self._missing(context, seen)}",
        )
        again = "replayed" if wanted_plan else "planned afterwards"
        return proven(left, restarted, f"batch {n} was {again} and committed")

    def _missing(self, context: FaultContext, seen: Occurrence) -> str:
        n = seen.batch
        if planned(context, seen.query, n):
            return f"commits/{n} missing"
        return (
            f"offsets/{n} missing: Spark plans a batch without input again only when there is more input (choose an "
            "earlier batch, or more chunks)"
        )


def _log_of_sink(scenario: Scenario) -> str | None:
    """The folder of the log by which one of Spark's own sinks commits, if the scenario has such an output."""
    used = map(store_of, scenario.outputs.values())
    return next((store.log for store in used if isinstance(store, CommitsLikeCheckpoints)), None)


def _written(exists: bool) -> str:
    return "written" if exists else "missing"
