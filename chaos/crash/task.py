"""Crash of an executor, a Python worker or the driver in the middle of a task: its writes stay, and Spark runs the task again.

The fault sends SIGKILL, as the kernel's out-of-memory killer does, or a cluster that removes a container. Spark does not undo a
task's side effects: tasks are to be deterministic and idempotent (M. Zaharia et al., *Resilient Distributed Datasets*, NSDI
2012).
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, faults, missed, proven
from onceproof.faults.frames import placement_at_frame, wait_for_commit, wait_for_restart
from onceproof.faults.placement import is_open
from onceproof.faults.tasks import TaskFault, TaskSpec, Victim, describe_retry, describe_tree, wait_for_event_log
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point

_CLOSED_S = 10.0
"""The kernel closes the connections of a dead process at once; the proxy notices in its next iteration."""
_LEFT_S = 30.0
"""In local mode the workers die with the driver; executors end when they lose their connection to it, which happens at once."""


class TaskCrashSpec(TaskSpec):
    fault: Literal["crash"]
    target: Literal["executor", "python-worker", "driver"]


@faults.register("crash", "executor")
@faults.register("crash", "python-worker")
@faults.register("crash", "driver", Point.IN_TASKS)
class TaskCrash(TaskFault):
    """The process dies while a request of its task is on the way, which then never arrives."""

    Spec: ClassVar[type[FaultSpec]] = TaskCrashSpec
    about: ClassVar[str] = "SIGKILL of an executor, a Python worker or the driver in the middle of a task"

    @classmethod
    def placement(cls, spec: TaskCrashSpec, scenario: Scenario) -> Placement:
        proof = (
            "the process is gone, Spark's event log records that its attempt failed and another one succeeded, and batch "
            f"{spec.at.batch} was committed"
        )
        return placement_at_frame(spec.at.point, proof, scenario)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        victim = self._find(context, seen)
        if isinstance(victim, Proof):
            return victim
        if self._spec.target == "driver":
            return self._prove_driver(context, seen, victim)
        process = victim.process
        tree = self._stop(context, seen, victim)
        if isinstance(tree, Proof):
            return tree
        evidence = list(victim.evidence)
        start = context.job.current_start
        tree.kill()
        evidence.append(f"killed (SIGKILL), and gone: {describe_tree(tree)}")
        hit = victim.hit
        left = "the killed process's connection to close"
        wait_until(left, lambda: hit.client_left_at or hit.undeliverable, deadline_s=_CLOSED_S)
        if hit.delivered_at is not None:
            return missed(*evidence, "its frame was delivered nevertheless")
        evidence += ["its frame was never delivered", wait_for_commit(context, seen)]
        retried, wanted = partial(describe_retry, victim=process), "an attempt that failed and one that succeeded"
        evidence.append(wait_for_event_log(context, seen, retried, wanted))
        if context.job.current_start > start:
            evidence.append("the query failed too: the driver was started again, and the batch was replayed")
        return proven(*evidence)

    def _prove_driver(self, context: FaultContext, seen: Occurrence, victim: Victim) -> Proof:
        n, evidence = seen.batch, list(victim.evidence)
        with context.job.no_start():  # the next driver may commit the batch before this thread looks
            start = context.job.kill_driver()
            was_open = is_open(context, seen.query, n)
        if not was_open:
            return missed(*evidence, f"batch {n} was no longer open when the driver was killed")
        # An executor's Python worker is ended by its daemon; until then its frame must stay held.
        wait_until("the task's process to close its connection", lambda: victim.hit.client_left_at, deadline_s=_LEFT_S)
        if victim.hit.delivered_at is not None:
            return missed(*evidence, "the driver was killed (SIGKILL), and the frame was delivered all the same")
        evidence.append("the driver was killed (SIGKILL) while the frame was held, and the frame was never delivered")
        evidence.append(f"left behind: offsets/{n} written, commits/{n} missing")
        evidence += [wait_for_restart(context, start), wait_for_commit(context, seen)]
        return proven(*evidence)
