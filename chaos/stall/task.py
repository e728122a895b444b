"""Stall of an executor or of a Python worker in the middle of a task: another attempt wins, and the first one wakes up.

SIGSTOP, as from a long garbage collection or a machine that swaps; SIGCONT once the batch has been committed without it. What
takes its place is Spark's own doing: a speculative attempt (``spark.speculation``), or a retry once the executor's heartbeats
have been missing for ``spark.network.timeout``. Then the frame that it was about to send arrives, and it goes on until Spark's
order to stop reaches it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof
from onceproof.faults.evidence.item import Evidence
from onceproof.faults.frames import ANSWER_S, frame_placement
from onceproof.faults.placement import RESTART_S, committed
from onceproof.faults.tasks import TaskFault, Victim, told
from onceproof.pipeline.spark_events import Attempt
from onceproof.pipeline.spark_tasks import TaskProcess, Tree, holds
from onceproof.scenario.model import FaultSpec, Scenario

_AWAKE_S = 60.0
"""A killed task's Python worker lives on for spark.python.task.killTimeout, 2 s; a small task has ended by then itself."""
_NOBODY = (
    "no other attempt took the task over: Spark makes one where spark.speculation is on, or once the executor's heartbeats "
    f"have been missing for spark.network.timeout (120 s by default, and this fault waits for {RESTART_S:.0f} s)"
)


class TaskStall(TaskFault):
    """`onceproof.chaos.stall.kind` hands over to it for its targets executor and python-worker."""

    @classmethod
    def placement(cls, spec: FaultSpec, scenario: Scenario) -> Placement:
        n = spec.at.batch
        proof = f"{n} committed by another attempt while the process was stopped; what it wrote when it was awake again"
        return frame_placement(spec.at.point, proof, scenario)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        victim = self._task.find(context, seen)
        if isinstance(victim, Proof):
            return victim
        process = victim.process
        tree = self._stop(context, seen, victim)
        if isinstance(tree, Proof):
            return tree
        words: list[str | Evidence] = list(victim.words)
        n, start = seen.batch, context.job.current_start
        words.append(f"stopped (SIGSTOP): process {tree.stats[0].pid}" + _others(tree))
        try:
            wait_until(f"batch {n} to be committed", lambda: committed(context, seen.query, n), deadline_s=RESTART_S)
        except WaitTimeout:
            return Proof(False, (*words, _NOBODY))
        if context.job.current_start > start:
            return Proof(
                False, (*words, "the driver was started again meanwhile: what committed the batch is no other attempt")
            )
        if awake := tree.awake():
            return Proof(False, (*words, _woken(awake)))
        words.append(f"batch {n} was committed by Spark while it was stopped")
        words.append(told(context, seen, partial(won, victim=process), "another attempt that succeeded"))
        if awake := tree.awake():
            return Proof(False, (*words, _woken(awake)))
        if process.pid not in tree.alive():
            # By Spark (spark.python.task.killTimeout), or with an executor that was given up.
            return Proof(True, (*words, "Spark killed it while it was stopped: its frame was never delivered"))
        return self._awake(tree, victim, words)

    def _awake(self, tree: Tree, victim: Victim, words: list[str | Evidence]) -> Proof:
        """What it did with its connection after SIGCONT; returns when it has left it.

        Its frame is delivered first, as if it had been on its way all the time: awake, it may be ended before the answer.
        """
        process, hit = victim.process, victim.hit
        self._task.release()
        wait_until("the answer to its frame", lambda: hit.answer or hit.undeliverable, deadline_s=ANSWER_S)
        if hit.answer is None:
            return Proof(False, (*words, f"its frame was never delivered: {hit.undeliverable}"))
        answer = _answer(hit.answer.facts)
        words.append(Evidence("its frame was delivered after the batch's commit; the service said", detail=answer))
        tree.thaw()
        wait_until(
            "the old attempt to leave its connection",
            lambda: not holds(process, hit.client, victim.to),
            deadline_s=_AWAKE_S,
            explain=lambda: f"{process.describe()} still holds {hit.client}",
        )
        return Proof(True, (*words, "awake again (SIGCONT), it went on to its end"))


def won(found: list[Attempt], victim: TaskProcess) -> str | None:
    """An attempt at a task of the victim's, somewhere else, that succeeded while the victim's own had not ended well."""
    on = victim.executor or "driver"
    for old in found:
        if old.executor != on or old.reason == "Success":
            continue
        task = (old.application, old.stage, old.task)
        same = (a for a in found if a is not old and (a.application, a.stage, a.task) == task)
        other = next((a for a in same if a.reason == "Success"), None)
        if other is not None:
            return f"Spark's event log: {other.describe()}; {old.describe()}"
    return None


def _woken(pids: list[int]) -> str:
    return f"process {', '.join(map(str, pids))} was not stopped any more: somebody else had let it go on"


def _answer(facts: Mapping[str, Any]) -> str:
    if facts.get("sqlstate"):
        return f"refused with {facts['sqlstate']}"
    return ", ".join(str(tag) for tag in [*(facts.get("tags") or []), *(facts.get("error_codes") or [])]) or "answered"


def _others(tree: Tree) -> str:
    return f" and {len(tree.stats) - 1} below it" if len(tree.stats) > 1 else ""
