"""Stall: a driver is stopped, a second one takes over on the same checkpoint, and the first wakes up again: the zombie.

SIGSTOP of the driver's whole session (Python and JVM), as a long garbage collection or a paused virtual machine; then a
second driver, as from a cluster that takes it for dead; SIGCONT once the second has committed a batch of its own. Spark's
checkpoint does not fence the sink: the first finishes its batch, and learns of its successor only at its next log entry
(SPARK-21145; M. Kleppmann, *Designing Data-Intensive Applications*, chapter 8, on fencing tokens).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from onceproof.broker_away import BrokerAway, Who
from onceproof.by_target import HandedOver, ignored_problems
from onceproof.checkpoint import Batch
from onceproof.conductor import Site
from onceproof.errors import WaitTimeout
from onceproof.faults import Occurrence, Placement, Proof, SpecProblem, faults
from onceproof.placing import (
    PARKED,
    RESTART_S,
    WATCHED,
    LeaderOf,
    committed,
    instruments_of,
    one_line,
    placement,
    planned,
    point_problems,
)
from onceproof.points import Point
from onceproof.qualify.job import Job, Try, at_checkpoint
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.sink_state import State, changes, sink_state, stable_ends, undecided
from onceproof.stack import procfs
from onceproof.stack.processes import Service
from onceproof.task_faults import TASK_TARGETS, TaskFrame, frame_of_no_task
from onceproof.task_stall import TaskStall
from onceproof.waiting import wait_until

_AWAKE_S = 60.0
"""The rest of one batch and an error: a second or two. A job that is still there then is not going to notice."""
_MARKERS_S = 5.0
"""They are written within milliseconds of the answer."""
_REPLACED = re.compile("CONCURRENT_STREAM_LOG_UPDATE|SparkConcurrentModificationException")
"""What Spark says to a driver whose next log entry somebody else has written."""
_ERROR = re.compile(r"^\s*(?:[\w.]+\.)?(\w*(?:Error|Exception|Fenced)\b: .*)$", re.MULTILINE)
# After its commit log there is nothing left of the batch that a zombie could write.
_PLACES = tuple(p for p in (*WATCHED, *PARKED) if p is not Point.AFTER_COMMIT_LOG)


class StallSpec(FaultSpec):
    fault: Literal["stall"]
    target: Literal["driver", "executor", "python-worker", "broker", "controller"]
    leader_of: LeaderOf | None = None
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
        self._site: Site | None = None
        self._query = ""
        self._start = 0
        self._zombie: Service | None = None
        self._open = False
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
        problems = point_problems(spec, _PLACES)
        last = scenario.guaranteed_batches() - 2
        if spec.at.batch > last:
            message = f"batch {spec.at.batch} may be the last one, and who takes over must commit a batch of its own"
            problems.append(SpecProblem(("at", "batch"), message, f"choose batch {last} or earlier, or more chunks"))
        return problems

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
        return at_checkpoint(job, _PLACES, {"target": "driver"})

    @property
    def needs_input(self) -> bool:
        """Until the successor has planned a batch of its own: then the feed waits until the zombie is gone."""
        return self._open and not self._own_batches()

    def matches(self, seen: Occurrence) -> bool:
        if self._other is not None:
            return self._other.matches(seen)
        return seen.point is self._spec.at.point and seen.instrument in instruments_of(seen.point)

    def strike(self, site: Site, seen: Occurrence) -> None:
        if self._other is not None:
            self._other.strike(site, seen)
            return
        self._site, self._query = site, seen.query
        self._start, self._zombie = site.job.take_over()
        self._open = planned(site, seen.query, seen.batch) and not committed(site, seen.query, seen.batch)
        site.timeline.emit("driver.stalled", start=self._start, query=seen.query, batch=seen.batch)
        if seen.release is not None:
            seen.release()  # it waits for an answer that it can read only when it is awake

    def prove(self, site: Site, seen: Occurrence) -> Proof:
        if self._other is not None:
            return self._other.prove(site, seen)
        assert self._zombie is not None
        n, second = seen.batch, self._start + 1
        if not self._open:
            return Proof(False, (f"batch {n} was not open any more when the driver was stopped",))
        words = [
            f"driver start {self._start} was stopped at {seen.point} of batch {n}: offsets/{n} there, commits/{n} missing"
        ]
        wait_until(
            f"batch {n} and one of its own to be committed by the driver that took over",
            lambda: self._gone_on(site, seen),
            deadline_s=RESTART_S,
            explain=lambda: f"driver start {site.job.current_start}; {_newest(site, seen.query)}",
        )
        if site.job.current_start != second:
            return Proof(False, (*words, f"driver start {second} took over and was replaced by another one"))
        own = ", ".join(str(b.batch) for b in self._own_batches())
        words.append(
            f"driver start {second} took over on the same checkpoint and committed batch {n}, then {own} of its own"
        )
        before = sink_state(site.stack)
        if not _stands(self._zombie):
            return Proof(
                False, (*words, f"driver start {self._start} was not stopped any more: somebody woke or ended it")
            )
        self._zombie.thaw()
        site.timeline.emit("driver.resumed", start=self._start)
        zombie = self._zombie
        try:
            wait_until(
                "the old driver to end, or to be told that it was replaced",
                lambda: not zombie.is_running() or _REPLACED.search(zombie.log_tail(400)),
                deadline_s=_AWAKE_S,
            )
        except WaitTimeout:
            return Proof(
                False, (*words, f"awake again, the old driver neither ended nor failed within {_AWAKE_S:.0f} s")
            )
        code = "" if zombie.is_running() else f" (exit code {zombie.returncode})"
        said = _ERROR.findall(zombie.log_tail(400))
        self.heal(site)
        site.timeline.emit("driver.ended", start=self._start)
        end = one_line(said[-1]) if said else "its end, without an error"
        words.append(f"awake again, the old driver went on until{code}: {end}")
        written = self._written(site, before)
        words += [f"meanwhile {change}" for change in written] or ["no sink has changed"]
        return Proof(True, tuple(words))

    @staticmethod
    def _written(site: Site, before: State) -> list[str]:
        """What differs since, once a commit that Kafka has just answered can be seen (its markers come after the answer)."""
        with suppress(WaitTimeout):  # then a transaction is open that nobody ends: there is no more to see
            wait_until(
                "the zombie's transaction to be decided",
                lambda: changes(before, sink_state(site.stack)) or not undecided(site.stack.kafka),
                deadline_s=_MARKERS_S,
            )
        return changes(before, sink_state(site.stack))

    def heal(self, site: Site) -> None:
        if self._other is not None:
            self._other.heal(site)
        if self._zombie is not None:
            self._zombie.kill()

    def _own_batches(self) -> list[Batch]:
        """Batches with data that the successor has planned."""
        assert self._site is not None
        return [
            b
            for b in self._site.checkpoint.batches()
            if (b.query, b.planned_by > self._start) == (self._query, True)
            and b.batch > self._spec.at.batch
            and b.records() > 0
        ]

    def _gone_on(self, site: Site, seen: Occurrence) -> bool:
        """Whether the successor has committed the batch, one of its own, and everything that there is to read: it is idle."""
        own = self._own_batches()
        if not committed(site, seen.query, seen.batch) or not own or any(b.committed_at is None for b in own):
            return False
        ends = stable_ends(site.stack.kafka)
        return all(
            ends.get(topic, {}).get(partition) == end
            for topic, partitions in own[-1].ends.items()
            for partition, end in partitions.items()
        )


def _stands(zombie: Service) -> bool:
    """Whether it is there, and nothing of it runs."""
    of_session = [one.pid for one in procfs.table().values() if one.session == zombie.pid]
    return zombie.is_running() and all(map(procfs.is_stopped, of_session))


def _newest(site: Site, query: str) -> str:
    batches = [b for b in site.checkpoint.batches() if b.query == query]
    return f"newest batch {batches[-1].batch}, planned by start {batches[-1].planned_by}" if batches else "no batch"
