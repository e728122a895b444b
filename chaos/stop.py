"""Stop: the driver is asked to end (SIGTERM) while its batch is open, and is killed if it does not end in time.

Service managers and clusters stop a process like this before each deployment: ``docker stop`` and Kubernetes send SIGTERM to the
first process, and SIGKILL to what still runs after a grace period. What happens in between is the job's own code: a handler that
calls ``query.stop()``, an ``atexit`` function that writes what is buffered, or nothing. ``query.stop()`` interrupts the batch, and
a Python foreachBatch gets an error at its next Spark job (SPARK-39218); a function without one runs to its end. Python without a
handler ends at once, and its JVM runs on for seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed, proven
from onceproof.faults.frames import (
    ANSWER_S,
    AtItsFrame,
    StoppedFrame,
    frame_problems,
    placement_at_frame,
    wait_for_commit,
    wait_for_restart,
)
from onceproof.faults.job import Job, Try, at_checkpoint
from onceproof.faults.placement import (
    PARKED,
    RESTART_S,
    WATCHED,
    AtItsPoint,
    is_open,
    placement_at,
    point_problems,
)
from onceproof.instruments.checkpoint_watcher import Batch
from onceproof.instruments.proxy.rules import now
from onceproof.pipeline.supervisor import Exit
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stores.frames import FrameSpec, Service

POINTS = tuple(p for p in (*WATCHED, *PARKED) if p is not Point.AFTER_COMMIT_LOG)
"""After its commit log the batch is complete, and there is nothing to interrupt."""
_GRACE_S = 30.0


class StopSpec(FaultSpec):
    fault: Literal["stop"]
    target: Literal["driver"]
    grace_s: float = Field(
        _GRACE_S,
        gt=0,
        le=300,
        description="seconds after SIGTERM until what still runs is killed; Kubernetes waits 30, `docker stop` 10",
    )


class _Stopping:
    """One driver that got SIGTERM while its batch was open."""

    def __init__(self, context: FaultContext, seen: Occurrence, grace_s: float) -> None:
        """Send the signal."""
        self._context, self._seen, self._grace_s = context, seen, grace_s
        self.was_open = is_open(context, seen.query, seen.batch)
        self._attempt = context.attempt(seen.query, seen.batch)
        self.start = context.job.ask_driver_to_end()

    def prove(self, *evidence: str) -> Proof:
        """Prove from how the driver ended, and from the next one, that its batch was interrupted. ``evidence``: what is known."""
        n = self._seen.batch
        if not self.was_open:
            return missed(*evidence, f"batch {n} was no longer open at SIGTERM")
        known = [*evidence, f"at SIGTERM offsets/{n} was written and commits/{n} missing", self._how_it_ended()]
        wait_for_restart(self._context, self.start)
        commit = wait_for_commit(self._context, self._seen)
        if not self._was_replayed():
            return proven(*known, f"the batch was committed before driver start {self.start + 1}")
        return proven(*known, f"commits/{n} was still missing when driver start {self.start + 1} began", commit)

    def _how_it_ended(self) -> str:
        """Wait until the driver's first process has ended, kill what outlives the grace period, and return that as evidence."""
        job = self._context.job

        def ended() -> Exit | None:
            return next((one for one in list(job.exits) if one.start == self.start), None)

        try:
            code = wait_until("the driver to end after SIGTERM", ended, deadline_s=self._grace_s).code
        except WaitTimeout:
            with job.no_start():  # it may have ended since, and the next one must not be killed in its place
                if ended() is None and job.is_running():
                    job.kill_driver()
                    return f"it still ran after {self._grace_s:g} s, and was killed"
            code = wait_until("the driver's exit to be recorded", ended, deadline_s=ANSWER_S).code
        by_itself = code is not None and code >= 0
        return f"it ended with exit code {code}" if by_itself else f"the signal ended it (exit code {code})"

    def _was_replayed(self) -> bool:
        """Whether the next driver found the batch without its commit. Looking for the commit and the restart in turn would not show
        which came first: both may come between two looks."""
        query, n = self._seen.query, self._seen.batch
        watcher = self._context.checkpoint
        seen = watcher.batch(query, n)
        if seen is not None and seen.committed_by == self.start:
            return False  # whatever its attempts: a job may also restart its query in the same driver
        if self._attempt is not None:
            return self._context.attempt(query, n) != self._attempt

        def read() -> Batch | None:
            batch = watcher.batch(query, n)
            return batch if batch is not None and batch.committed_by is not None else None

        reason = f"the commit of batch {n} to be read"
        return wait_until(reason, read, deadline_s=RESTART_S, abandon=watcher.check).committed_by != self.start


@faults.register("stop", "driver")
class DriverStop(AtItsPoint[StopSpec]):
    """The driver is stopped as for a deployment, in the middle of a batch, and started again."""

    Spec: ClassVar[type[FaultSpec]] = StopSpec
    about: ClassVar[str] = "SIGTERM to the driver's first process, and SIGKILL if it does not end in time"

    def __init__(self, spec: StopSpec) -> None:
        self._spec = spec
        self._stopping: _Stopping | None = None

    @classmethod
    def problems(cls, spec: StopSpec, scenario: Scenario) -> list[SpecProblem]:
        return point_problems(spec, (*POINTS, Point.IN_TASKS))

    @classmethod
    def placement(cls, spec: StopSpec, scenario: Scenario) -> Placement:
        return placement_at(spec.at.point, _proof(spec), scenario)

    @classmethod
    def more_tries(cls, job: Job) -> Iterator[Try]:
        parked = any(query.parks for query in job.queries)
        return at_checkpoint(job, tuple(p for p in POINTS if parked or p not in PARKED), {"target": "driver"})

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self._stopping = _Stopping(context, seen, self._spec.grace_s)
        if seen.release is not None:
            seen.release()

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        assert self._stopping is not None
        return self._stopping.prove(
            f"driver start {self._stopping.start} got SIGTERM at {seen.point} of batch {seen.batch}"
        )


class StopAtFrameSpec(StopSpec):
    service: Service = Field(description="the service to which the request is sent")
    frame: FrameSpec = Field(default_factory=FrameSpec, description="which request (default: the commit)")


@faults.register("stop", "driver", Point.IN_TASKS)
class DriverStopAtFrame(AtItsFrame):
    """The driver is stopped while a request of its batch is on its way; the request is delivered after the signal."""

    Spec: ClassVar[type[FaultSpec]] = StopAtFrameSpec
    about: ClassVar[str] = "SIGTERM to the driver's first process while one request of its batch is on its way"

    def __init__(self, spec: StopAtFrameSpec) -> None:
        self._spec = spec
        self._stopped = StoppedFrame(spec.frame, spec.service, "park", hold=True)

    @classmethod
    def problems(cls, spec: StopAtFrameSpec, scenario: Scenario) -> list[SpecProblem]:
        named = frame_problems(spec.frame, spec.service, scenario, query=spec.at.query)
        return [SpecProblem(("service",), p.message, p.hint) if p.loc == ("target",) else p for p in named]

    @classmethod
    def placement(cls, spec: StopAtFrameSpec, scenario: Scenario) -> Placement:
        return placement_at_frame(spec.at.point, _proof(spec), scenario)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self._stopped.arm(context, seen)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        found = self._stopped.wait_for_frame(context, seen)
        if isinstance(found, Proof):
            return found
        asked_at = now()
        stopping = _Stopping(context, seen, self._spec.grace_s)
        self._stopped.rule.release()
        held = self._stopped.describe_stop(found, seen)
        wait_until("the request to go on", lambda: found.delivered_at or found.undeliverable, deadline_s=ANSWER_S)
        if (why := found.lost_before(asked_at)) is not None:
            return missed(held, why)
        then = "then the request went on" if found.undeliverable is None else found.undeliverable
        return stopping.prove(held, f"driver start {stopping.start} got SIGTERM meanwhile; {then}")

    def heal(self, context: FaultContext) -> None:
        self._stopped.close(context)


def _proof(spec: StopSpec) -> str:
    return f"batch {spec.at.batch} was open at SIGTERM; how the driver ended; the restart, and the batch's commit"
