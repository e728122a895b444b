"""Stall of an executor or a Python worker in the middle of a task: another attempt succeeds, and then the first one resumes.

The fault sends SIGSTOP, which resembles a long garbage collection or a machine that swaps, and SIGCONT once the batch has been
committed without the process. Spark itself starts the other attempt: a speculative one (``spark.speculation``), or a retry once
the executor's heartbeats have been missing for ``spark.network.timeout``. Then the frame that the process had sent is
delivered, and the process runs on until Spark's order to stop reaches it.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, faults, missed, proven
from onceproof.faults.evidence.item import Evidence
from onceproof.faults.frames import placement_at_frame
from onceproof.faults.tasks import (
    TaskFault,
    TaskSpec,
    Victim,
    describe_tree,
    describe_winner,
    wait_for_event_log,
    why_not_taken_over,
)
from onceproof.pipeline.spark_tasks import Tree, holds
from onceproof.scenario.model import FaultSpec, Scenario

_AWAKE_S = 60.0
"""A killed task's Python worker lives on for spark.python.task.killTimeout, 2 s; a small task ends by itself before that."""
_OTHER_ATTEMPT = "if spark.speculation is on, or once the executor's heartbeats have been missing for spark.network.timeout (120 s by default)"


class TaskStallSpec(TaskSpec):
    fault: Literal["stall"]
    target: Literal["executor", "python-worker"]


@faults.register("stall", "executor")
@faults.register("stall", "python-worker")
class TaskStall(TaskFault):
    """The process pauses, another attempt takes over its task, and it resumes as a zombie once the batch is committed."""

    Spec: ClassVar[type[FaultSpec]] = TaskStallSpec
    about: ClassVar[str] = (
        "SIGSTOP of an executor or a Python worker in the middle of a task while another attempt takes over, then SIGCONT"
    )

    @classmethod
    def placement(cls, spec: TaskStallSpec, scenario: Scenario) -> Placement:
        n = spec.at.batch
        proof = f"batch {n} was committed by another attempt while the process was stopped; its writes after it resumed"
        return placement_at_frame(spec.at.point, proof, scenario)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        victim = self._find(context, seen)
        if isinstance(victim, Proof):
            return victim
        process = victim.process
        tree = self._stop(context, seen, victim)
        if isinstance(tree, Proof):
            return tree
        evidence: list[str | Evidence] = list(victim.evidence)
        evidence.append(f"stopped (SIGSTOP): {describe_tree(tree)}")
        if (why := why_not_taken_over(context, seen, context.job.current_start, _OTHER_ATTEMPT)) is not None:
            return missed(*evidence, why)
        if awake := tree.awake():
            return missed(*evidence, _woken(awake))
        evidence.append(f"batch {seen.batch} was committed by Spark while it was stopped")
        won = partial(describe_winner, victim=process)
        evidence.append(wait_for_event_log(context, seen, won, "another attempt that succeeded"))
        if awake := tree.awake():
            return missed(*evidence, _woken(awake))
        if process.pid not in tree.alive():
            # By Spark itself (spark.python.task.killTimeout), or together with its executor.
            return proven(*evidence, "Spark killed it while it was stopped: its frame was never delivered")
        return self._resume(tree, victim, evidence)

    def _resume(self, tree: Tree, victim: Victim, evidence: list[str | Evidence]) -> Proof:
        """Deliver the frame, resume the process, and wait until it has closed its connection.

        The frame is delivered first, as if it had been on its way all the time: once resumed, the process may end before the
        answer arrives.
        """
        process, hit = victim.process, victim.hit
        answer = self._deliver(victim)
        if isinstance(answer, str):
            return missed(*evidence, answer)
        evidence.append(answer)
        tree.thaw()
        wait_until(
            "the old attempt to close its connection",
            lambda: not holds(process, hit.client, victim.address),
            deadline_s=_AWAKE_S,
            explain=lambda: f"{process.describe()} still holds {hit.client}",
        )
        return proven(*evidence, "after SIGCONT it ran on until it closed its connection")


def _woken(pids: list[int]) -> str:
    return f"process {', '.join(map(str, pids))} was no longer stopped: another process had resumed it"
