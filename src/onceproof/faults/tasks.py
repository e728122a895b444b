"""Shared by faults of executors and Python workers: the frame that selects the task, its process, and Spark's event log.

The fault strikes at a frame that a task sends (a statement, a Produce, a Fetch) in the chosen batch. The protocol proxy stops
the frame; the process at the other end of its connection is the victim, and so is certainly in the middle of a task. The task
has done everything before that frame; if its process dies, the frame is never delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.base.words import times
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import EXECUTORS, Occurrence, Proof, SpecProblem, missed
from onceproof.faults.evidence.item import Evidence
from onceproof.faults.frames import ANSWER_S, AtItsFrame, StoppedFrame, frame_problems
from onceproof.faults.placement import RESTART_S, committed, point_problems
from onceproof.instruments.checkpoint_watcher import query_id_in
from onceproof.instruments.proxy.rules import Hit
from onceproof.pipeline.spark_events import Attempt, attempts
from onceproof.pipeline.spark_tasks import TaskProcess, Tree, sender
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stores.frames import FrameSpec, Service, StoreFrames, all_frames, frames_of

_EVENT_LOG_S = 20.0
"""Spark writes its event log asynchronously, with a delay of milliseconds."""
_WORKER_GONE = "Python worker exited unexpectedly"
"""Spark's error for a task whose Python worker closed its connection (``PythonRunner``)."""


class TaskFrame(FrameSpec):
    """A frame that a task sends; the fault strikes the process that sends it."""

    service: Service | None = Field(
        None, description="the service to which it is sent (default: postgres if the stack has it)"
    )

    def service_in(self, offered: Callable[[StoreFrames], bool]) -> Service:
        """The service, or the first one that is offered."""
        return self.service if self.service is not None else next(filter(offered, all_frames())).service


class TaskSpec(FaultSpec):
    """Settings of a fault that strikes in the middle of a task."""

    frame: TaskFrame | None = Field(None, description="the process whose task sends this frame is struck")


def _with_kind(frame: TaskFrame, service: Service) -> TaskFrame:
    """The frame with its default kind: one that a task sends several times, not the commit at its end."""
    if frame.kind is not None:
        return frame
    usual = frames_of(service).in_task
    return frame.model_copy(update={key: getattr(frame, key) or value for key, value in usual.items()})


@dataclass(frozen=True)
class Victim:
    """A process in the middle of a task, and the frame that it has sent."""

    process: TaskProcess
    hit: Hit
    address: str
    """``host:port`` of the protocol proxy to which it sent the frame."""
    evidence: tuple[str, ...]
    """The evidence so far."""


def wait_for_event_log(
    context: FaultContext, seen: Occurrence, describe: Callable[[list[Attempt]], str | None], reason: str
) -> str:
    """Wait until ``describe`` finds what it looks for in the event log's attempts at the batch's tasks; returns its sentence.

    Raises `WaitTimeout` with the attempts that the log records instead.
    """
    folder = context.events
    assert folder is not None, "the run keeps an event log if a fault strikes tasks"
    query_id = query_id_in(context.checkpoint.folder(seen.query))

    def look() -> str | None:
        return describe(attempts(folder, seen.batch, query_id))

    def explain() -> str:
        if not any(folder.iterdir()):
            return f"Spark wrote no event log in {folder}: does the job set spark.eventLog itself?"
        found = attempts(folder, seen.batch, query_id)
        return "; ".join(one.describe() for one in found[:8]) or f"no task of batch {seen.batch}"

    return wait_until(f"Spark's event log to record {reason}", look, deadline_s=_EVENT_LOG_S, explain=explain)


def describe_tree(tree: Tree) -> str:
    """The process and the number of its descendants, for evidence."""
    descendants = len(tree.stats) - 1
    return f"process {tree.stats[0].pid}" + (f" and {times(descendants, 'descendant')}" if descendants else "")


def describe_retry(found: list[Attempt], victim: TaskProcess) -> str | None:
    """A sentence on an attempt whose process died, and a later one at the same task that succeeded; None if there is none."""
    executor = victim.executor or "driver"
    for lost in found:
        if lost.executor != executor or not _died(lost, victim):
            continue
        later = (a for a in found if a.launched_ms > lost.launched_ms and _same_task(a, lost))
        again = next((a for a in later if a.reason == "Success"), None)
        if again is not None:
            where = " of the next driver" if again.application != lost.application else ""
            why = f" ({lost.why})" if lost.why else ""
            return f"Spark's event log: {lost.describe()}{why}; {again.describe()}{where}"
    return None


def describe_winner(found: list[Attempt], victim: TaskProcess) -> str | None:
    """A sentence on another attempt that succeeded at a task at which the victim's attempt did not; None if there is none."""
    executor = victim.executor or "driver"
    for old in found:
        if old.executor != executor or old.reason == "Success":
            continue
        task = (old.application, old.stage, old.task)
        same = (a for a in found if a is not old and (a.application, a.stage, a.task) == task)
        other = next((a for a in same if a.reason == "Success"), None)
        if other is not None:
            return f"Spark's event log: {other.describe()}; {old.describe()}"
    return None


def why_not_taken_over(context: FaultContext, seen: Occurrence, start: int, how: str) -> str | None:
    """Wait until the batch is committed. Returns why no other attempt has done that in driver start ``start``; None if one has.

    ``how``: when Spark starts another attempt.
    """
    try:
        reason = f"batch {seen.batch} to be committed"
        wait_until(reason, lambda: committed(context, seen.query, seen.batch), deadline_s=RESTART_S)
    except WaitTimeout:
        return f"no other attempt took over the task: Spark starts one {how}, while this fault waits only {RESTART_S:.0f} s"
    if context.job.current_start > start:
        return "the driver was started again meanwhile: a replay committed the batch, not another attempt"
    return None


def _answered(facts: Mapping[str, Any]) -> str:
    """What a service answered to a frame, for evidence."""
    if facts.get("sqlstate"):
        return f"refused with {facts['sqlstate']}"
    return ", ".join(str(tag) for tag in [*(facts.get("tags") or []), *(facts.get("error_codes") or [])]) or "answered"


def _same_task(one: Attempt, other: Attempt) -> bool:
    """Whether both are attempts at one task. The next driver numbers its stages from 0: then only the task's number counts."""
    return one.task == other.task and (one.stage == other.stage or one.application != other.application)


def _died(lost: Attempt, victim: TaskProcess) -> bool:
    """Whether the attempt failed because its process died, and not for another reason."""
    if lost.reason == "ExecutorLostFailure":
        return victim.executor is not None
    return lost.reason == "ExceptionFailure" and victim.role == "python-worker" and _WORKER_GONE in lost.why


class TaskFault(AtItsFrame):
    """Base of crash and stall in the middle of a task: armed when the batch is planned; `prove` then strikes at the frame."""

    def __init__(self, spec: TaskSpec) -> None:
        self._spec = spec
        self._stopped: StoppedFrame | None = None
        self._tree: Tree | None = None

    @classmethod
    def needs_control(cls, spec: TaskSpec) -> str | None:
        return EXECUTORS

    @classmethod
    def problems(cls, spec: TaskSpec, scenario: Scenario) -> list[SpecProblem]:
        """Why this fault can never strike: wrong point, a frame that no task sends, an executor that is not a separate process."""
        problems = point_problems(spec, (Point.IN_TASKS,))
        if spec.target == "executor" and scenario.stack.spark is None:
            message = "without a cluster the driver is the executor: there is no separate process to strike"
            problems.append(SpecProblem(("target",), message, "add `spark: {}` to the stack, or set target: driver"))
        local = next((word for word in scenario.pipeline.command if "local[" in word or word.endswith("local")), None)
        if spec.target == "executor" and scenario.stack.spark is not None and local is not None:
            message = f"the command says {local!r}: tasks would run in the driver, not on the stack's executors"
            problems.append(SpecProblem(("target",), message, "set no master, or set it to {spark.master}"))
        frame = spec.frame or TaskFrame()
        service = frame.service_in(lambda store: store.missing(scenario) is None)
        if (missing := frames_of(service).missing(scenario)) is not None:
            return [*problems, replace(missing, loc=("frame", "service"))]
        # Only the kind: the default pattern, any statement that writes, does not identify a query.
        frame = frame.model_copy(update={"kind": _with_kind(frame, service).kind})
        return problems + frame_problems(frame, service, scenario, query=spec.at.query)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        frame = self._spec.frame or TaskFrame()
        service = frame.service_in(lambda store: bool(store.proxies(context.stack)))
        self._stopped = StoppedFrame(_with_kind(frame, service), service, "park", hold=True)
        self._stopped.arm(context, seen)

    def heal(self, context: FaultContext) -> None:
        if self._tree is not None:
            self._tree.thaw()  # in case it was stopped and then not struck
        if self._stopped is not None:
            self._stopped.close(context)

    def _find(self, context: FaultContext, seen: Occurrence) -> Victim | Proof:
        """The process that sent the frame, while the frame is held and its batch is open; or a miss that says why there is
        none to strike."""
        assert self._stopped is not None, "it has struck"
        found = self._stopped.wait_for_frame(context, seen)
        if isinstance(found, Proof):
            return found
        stopped = self._stopped.describe_stop(found, seen)
        pids = context.job.pids() + (context.stack.spark.pids() if context.stack.spark is not None else [])
        listeners = self._stopped.store.proxies(context.stack)
        address = next(one.listen for one in listeners if one.name == found.proxy)
        process = sender(found.client, pids, address)
        if process is None:
            return missed(stopped, f"its sender was not found: no process of the job holds connection {found.client}")
        sent = f"it was sent by {process.describe()}"
        if (why := mismatch(self._spec.target, process)) is not None:
            return missed(stopped, f"{sent}: {why}")
        return Victim(process, found, address, (stopped, sent))

    def _deliver(self, victim: Victim) -> Evidence | str:
        """Deliver the held frame, as if it had been on its way all the time. Returns the answer as evidence, or why there is none."""
        assert self._stopped is not None, "it has struck"
        hit = victim.hit
        self._stopped.rule.release()
        wait_until("the answer to its frame", lambda: hit.answer or hit.undeliverable, deadline_s=ANSWER_S)
        if hit.answer is None:
            return hit.undeliverable or "the frame was never delivered"
        sentence = "its frame was delivered after the batch's commit; the service answered"
        return Evidence(sentence, detail=_answered(hit.answer.facts))

    def _stop(self, context: FaultContext, seen: Occurrence, victim: Victim) -> Tree | Proof:
        """Stop the victim's processes. Returns them; or a miss if the frame is no longer held or its batch is committed."""
        # An executor is struck with its Python workers, as when its container ends; a Python worker is struck alone.
        process = victim.process
        tree = self._tree = Tree.freeze(process.pid if self._spec.target == "python-worker" else process.jvm)
        if victim.hit.client_left_at is None and not committed(context, seen.query, seen.batch):
            return tree
        late = "the process had closed the connection, or the batch was committed, before the process could be stopped"
        return missed(*victim.evidence, late)


def mismatch(target: str, process: TaskProcess) -> str | None:
    """Why the sender is not the fault's target; None if it is. The driver is never struck instead of an executor."""
    if target == "executor" and process.executor is None:
        if process.role == "driver":
            return "in this job the driver writes; executors send for example {service: kafka, kind: Fetch}"
        return "in local mode the driver is the executor (does the job set its master itself?)"
    if target == "driver" and process.role == "driver":
        return "the driver sent it outside any task; to crash it at its own commit use before-sink-commit"
    if target != "python-worker" or process.role == "python-worker":
        return None
    writer = "the driver writes" if process.role == "driver" else "the executor's JVM writes: use target: executor"
    return f"that is not a Python worker; in this job {writer}"
