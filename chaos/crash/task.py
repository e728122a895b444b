"""Crash of an executor, a Python worker or the driver in the middle of a task: what that attempt wrote stays, and Spark tries again.

SIGKILL, as from a kernel's out-of-memory killer or a container that is taken away. A task's side effects are its own affair
(M. Zaharia et al., *Resilient Distributed Datasets*, NSDI 2012: tasks are to be deterministic and idempotent).
"""

from __future__ import annotations

from functools import partial

from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof
from onceproof.faults.frames import frame_placement, wait_for_commit
from onceproof.faults.placement import RESTART_S, committed, planned
from onceproof.faults.tasks import TaskFault, Victim, retried, told
from onceproof.scenario.model import FaultSpec, Scenario

_CLOSED_S = 10.0
"""The kernel closes a dead process' connections at once; the proxy hears of it in its next turn."""
_LEFT_S = 30.0
"""In local mode the workers die with the driver; executors end themselves when its connection has gone, which is at once."""


class TaskCrash(TaskFault):
    """`onceproof.chaos.crash.kind` hands over to it at the point in-tasks."""

    @classmethod
    def placement(cls, spec: FaultSpec, scenario: Scenario) -> Placement:
        proof = f"the process is gone, Spark records its attempt's end and another's success, {spec.at.batch} committed"
        return frame_placement(spec.at.point, proof, scenario)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        victim = self._task.find(context, seen)
        if isinstance(victim, Proof):
            return victim
        if self._spec.target == "driver":
            return self._prove_driver(context, seen, victim)
        process = victim.process
        tree = self._stop(context, seen, victim)
        if isinstance(tree, Proof):
            return tree
        words = list(victim.words)
        start = context.job.current_start
        tree.kill()
        others = len(tree.stats) - 1
        below = f" and {others} below it" if others else ""
        words.append(f"killed (SIGKILL): process {tree.stats[0].pid}{below}; all gone")
        hit = victim.hit
        wait_until("its connection to be gone", lambda: hit.client_left_at or hit.undeliverable, deadline_s=_CLOSED_S)
        if victim.hit.delivered_at is not None:
            return Proof(False, (*words, "its frame was delivered all the same"))
        words.append("its frame was never delivered")
        words.append(wait_for_commit(context, seen))
        words.append(
            told(context, seen, partial(retried, victim=process), "an attempt that failed and one that succeeded")
        )
        if context.job.current_start > start:
            words.append("the query failed with it: the driver was started again, and the batch replayed")
        return Proof(True, tuple(words))

    def _prove_driver(self, context: FaultContext, seen: Occurrence, victim: Victim) -> Proof:
        n, words = seen.batch, list(victim.words)
        start = context.job.kill_driver()
        if committed(context, seen.query, n) or not planned(context, seen.query, n):
            return Proof(False, (*words, f"batch {n} was not open any more when the driver was killed"))
        # An executor's Python worker learns of it from its daemon; until then its frame must not go on.
        wait_until("the task that waited to be gone", lambda: victim.hit.client_left_at, deadline_s=_LEFT_S)
        if victim.hit.delivered_at is not None:
            return Proof(False, (*words, "the driver was killed (SIGKILL), and the frame was delivered all the same"))
        words.append("the driver was killed (SIGKILL) over it, and the frame never delivered")
        words.append(f"left behind: offsets/{n} there, commits/{n} missing")
        wait_until("the driver to be started again", lambda: context.job.restarted_since(start), deadline_s=RESTART_S)
        words += ["the driver was started again", wait_for_commit(context, seen)]
        return Proof(True, tuple(words))
