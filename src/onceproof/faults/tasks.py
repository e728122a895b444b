"""What faults of executors and of Python workers share: the moment, the victim, and Spark's own word on the task's attempts.

The moment is a frame that a task itself sends (a statement, a Produce, a Fetch), stopped by the protocol proxy in the batch
that is meant; the victim is the process at the other end of its connection, so that it is in the middle of a task for sure.
Everything before that frame has been done, and it itself is never delivered to a service for a process that dies over it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Proof, SpecProblem
from onceproof.faults.frames import FrameSpec, StoppedFrame, frame_problems, is_planned, which
from onceproof.faults.placement import committed, point_problems
from onceproof.instruments.proxy.rules import WRITES, Hit
from onceproof.pipeline.spark_events import Attempt, attempts
from onceproof.pipeline.spark_tasks import TaskProcess, Tree, sender
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point

#: Targets that can only be struck in the middle of a task.
TASK_TARGETS = ("executor", "python-worker")

_TOLD_S = 20.0
"""Spark writes its event log from a queue of its own, milliseconds behind."""
_WORKER_GONE = "Python worker exited unexpectedly"
"""What Spark says of a task whose Python worker's connection ends (``PythonRunner``)."""

Service = Literal["postgres", "kafka"]


class TaskFrame(FrameSpec):
    """A frame that a task sends; the process that sends it is the one that is struck."""

    service: Service | None = Field(None, description="whom it is sent to (default: Postgres where there is one)")

    def of(self, scenario: Scenario) -> Service:
        return self.service or ("kafka" if scenario.stack.postgres is None else "postgres")


def task_problems(spec: FaultSpec, frame: TaskFrame | None, scenario: Scenario) -> list[SpecProblem]:
    """What can never be: another point, a frame that no task sends, an executor that is no process of its own."""
    problems = point_problems(spec, (Point.IN_TASKS,))
    if spec.target == "executor" and scenario.stack.spark is None:
        message = "without a cluster the executor is the driver itself: nothing of it can be struck alone"
        problems.append(SpecProblem(("target",), message, "add `spark: {}` to the stack, or set target: driver"))
    local = next((word for word in scenario.pipeline.command if "local[" in word or word.endswith("local")), None)
    if spec.target == "executor" and scenario.stack.spark is not None and local is not None:
        message = f"the command says {local!r}: tasks would run in the driver, not on the stack's executors"
        problems.append(SpecProblem(("target",), message, "leave the job's master out, or give it {spark.master}"))
    frame = frame or TaskFrame()
    service = frame.of(scenario)
    if service == "postgres" and scenario.stack.postgres is None:
        message = "this stack has no Postgres"
        return [*problems, SpecProblem(("frame", "service"), message, "add `postgres: {}` to the stack")]
    # Its kind alone: that it writes, which is the default besides, tells no query from another.
    frame = frame.model_copy(update={"kind": _with_kind(frame, service).kind})
    return problems + frame_problems(frame, service, scenario, query=spec.at.query)


def frame_of_no_task(target: str) -> list[SpecProblem]:
    """``frame`` with a target that is struck at a point, not in the middle of a task."""
    message = f"a frame says in which task; {target} is struck at a point of its own here"
    return [SpecProblem(("frame",), message, f"remove it, or set target: {' or '.join(TASK_TARGETS)}")]


def _with_kind(frame: TaskFrame, service: Service) -> TaskFrame:
    """The default is a frame of which a task sends several, not the commit that ends it all."""
    if frame.kind is not None:
        return frame
    if service == "kafka":
        return frame.model_copy(update={"kind": "Produce"})
    return frame.model_copy(update={"kind": "statement", "sql": frame.sql or WRITES})


@dataclass(frozen=True)
class Victim:
    """Who is in the middle of a task, and what it was about to send."""

    process: TaskProcess
    hit: Hit
    to: str
    """``host:port`` that it sent it to: the protocol proxy."""
    words: tuple[str, ...]
    """Evidence so far."""


class InTask:
    """One frame of a task of one batch. Armed by `arm`, its sender found by `find`, let go by `close`."""

    def __init__(self, spec: FaultSpec, frame: TaskFrame | None) -> None:
        self._spec = spec
        self._frame = frame or TaskFrame()
        self._stopped: StoppedFrame | None = None

    def arm(self, context: FaultContext, seen: Occurrence) -> None:
        service = self._frame.service or ("kafka" if context.stack.postgres is None else "postgres")
        self._stopped = StoppedFrame(_with_kind(self._frame, service), service, "park", hold=True)
        self._stopped.arm(context, seen)

    def find(self, context: FaultContext, seen: Occurrence) -> Victim | Proof:
        """The process that sent the frame, while the frame waits and its batch is open; or why there is none to strike."""
        assert self._stopped is not None
        found = self._stopped.found(context, seen)
        if isinstance(found, Proof):
            return found
        said = f"{which(found.frame)} was stopped by {found.proxy} while batch {seen.batch} was open"
        pids = context.job.pids() + (context.stack.spark.pids() if context.stack.spark is not None else [])
        to = self._listen(context, found.proxy)
        process = sender(found.client, pids, to)
        if process is None:
            return Proof(False, (said, f"no process of the job holds its connection ({found.client})"))
        why = self.why_not(process)
        if why is not None:
            return Proof(False, (said, f"it was sent by {process.describe()}: {why}"))
        return Victim(process, found, to, (said, f"it was sent by {process.describe()}"))

    def _listen(self, context: FaultContext, proxy: str) -> str:
        """Where clients of that protocol proxy connect to."""
        assert self._stopped is not None
        postgres, kafka = context.stack.postgres, context.stack.kafka
        if self._stopped.target == "postgres":
            assert postgres is not None, "validated: the frame needs Postgres"
            return postgres.proxy.listen
        return next(one.listen for one in map(kafka.client_proxy, kafka.brokers) if one.name == proxy)

    def why_not(self, process: TaskProcess) -> str | None:
        """What keeps the sender from being the one that is meant. The driver is never struck in an executor's place."""
        fetches = "its driver writes; a frame that executors send is {service: kafka, kind: Fetch}"
        if self._spec.target == "executor" and process.executor is None:
            local = "in local mode the executor is the driver (does the job set its master itself?)"
            return fetches if process.role == "driver" else local
        if self._spec.target == "executor":
            return None
        if self._spec.target == "driver":
            own = "no task is under way there; what the driver itself writes is at before-sink-commit"
            return own if process.role == "driver" else None
        if process.role == "python-worker":
            return None
        writer = (
            "its driver writes" if process.role == "driver" else "the executor's JVM writes: target executor strikes it"
        )
        return f"that is no Python worker; in this job {writer}"

    def still_open(self, context: FaultContext, seen: Occurrence, victim: Victim) -> bool:
        """Whether the frame still waits, asked when nothing of the victim runs any more."""
        return victim.hit.client_left_at is None and not committed(context, seen.query, seen.batch)

    def release(self) -> None:
        assert self._stopped is not None
        self._stopped.rule.release()

    def close(self, context: FaultContext) -> None:
        if self._stopped is not None:
            self._stopped.close(context)


def told(context: FaultContext, seen: Occurrence, wanted: Callable[[list[Attempt]], str | None], reason: str) -> str:
    """What Spark's event log says of the batch's tasks once ``wanted`` finds it there, as a sentence.

    Raises `WaitTimeout` with the attempts that were told of instead.
    """
    folder = context.events
    assert folder is not None, "the run keeps an event log: a fault strikes tasks"
    query_id = _query_id(context, seen.query)

    def look() -> str | None:
        return wanted(attempts(folder, seen.batch, query_id))

    def instead() -> str:
        if not any(folder.iterdir()):
            return "Spark wrote no event log there: does the job set spark.eventLog itself?"
        found = attempts(folder, seen.batch, query_id)
        return "; ".join(one.describe() for one in found[:8]) or f"no task of batch {seen.batch}"

    return wait_until(f"Spark's event log to record {reason}", look, deadline_s=_TOLD_S, explain=instead)


def _query_id(context: FaultContext, query: str) -> str | None:
    """As its checkpoint's ``metadata`` has it; it stays the same over restarts."""
    try:
        told: dict[str, str] = json.loads((context.checkpoint.folder(query) / "metadata").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return told.get("id")


def retried(found: list[Attempt], victim: TaskProcess) -> str | None:
    """That an attempt failed as it does when its process dies, and that a later one at the same task succeeded."""
    on = victim.executor or "driver"
    for lost in found:
        if lost.executor != on or not _died(lost, victim):
            continue
        again = next(
            (a for a in found if a.reason == "Success" and a.launched_ms > lost.launched_ms and _same_task(a, lost)),
            None,
        )
        if again is not None:
            where = " of the next driver" if again.application != lost.application else ""
            said = f" ({lost.why})" if lost.why else ""
            return f"Spark's event log: {lost.describe()}{said}; {again.describe()}{where}"
    return None


def _same_task(one: Attempt, other: Attempt) -> bool:
    """Stages are numbered anew by the next driver, so that only the task's number is left to tell by."""
    return one.task == other.task and (one.stage == other.stage or one.application != other.application)


def _died(lost: Attempt, victim: TaskProcess) -> bool:
    """Whether the attempt failed as one does whose process is gone, and not for a reason of its own."""
    if lost.reason == "ExecutorLostFailure":
        return victim.executor is not None
    return lost.reason == "ExceptionFailure" and victim.role == "python-worker" and _WORKER_GONE in lost.why


class TaskFault:
    """Base of crash and stall of who runs a task: armed at the batch's plan, stopped at its frame; what then is theirs."""

    def __init__(self, spec: FaultSpec, frame: TaskFrame | None) -> None:
        self._spec = spec
        self._task = InTask(spec, frame)
        self._tree: Tree | None = None

    @classmethod
    def problems(cls, spec: FaultSpec, frame: TaskFrame | None, scenario: Scenario) -> list[SpecProblem]:
        return task_problems(spec, frame, scenario)

    def matches(self, seen: Occurrence) -> bool:
        return is_planned(seen)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self._task.arm(context, seen)

    def heal(self, context: FaultContext) -> None:
        if self._tree is not None:
            self._tree.thaw()  # for one that was stopped and then not struck
        self._task.close(context)

    def _stop(self, context: FaultContext, seen: Occurrence, victim: Victim) -> Tree | Proof:
        """Everything of the victim, stopped, with its frame still waiting; or that it was not the moment any more."""
        # A container takes its Python workers with it; one of them alone is struck alone.
        process = victim.process
        tree = self._tree = Tree.freeze(process.pid if self._spec.target == "python-worker" else process.jvm)
        if self._task.still_open(context, seen, victim):
            return tree
        return Proof(False, (*victim.words, "it had gone on, or given up, by the time it was stopped"))
