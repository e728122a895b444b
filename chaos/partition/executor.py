"""Partition of an executor in the middle of a task: nothing reaches it, and nothing that it sends arrives, until it was replaced.

The executor's container is disconnected from its network, as when a machine loses its switch. It runs on, and what its tasks have
sent before is on its way. Spark starts another attempt elsewhere, once the executor's heartbeats have been missing for
``spark.network.timeout``. Then the frame at which the fault struck is delivered, and the executor is connected again.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import EXECUTORS_NETWORK, Occurrence, Placement, Proof, faults, missed, proven
from onceproof.faults.evidence.item import Evidence
from onceproof.faults.frames import ANSWER_S, placement_at_frame
from onceproof.faults.placement import RESTART_S, committed
from onceproof.faults.tasks import TaskFault, TaskSpec, answered, describe_winner, wait_for_event_log
from onceproof.scenario.model import FaultSpec, Scenario

_NO_OTHER_ATTEMPT = (
    "no other attempt took over the task: Spark starts one once the executor's heartbeats have been missing for "
    f"spark.network.timeout (120 s by default, while this fault waits only {RESTART_S:.0f} s)"
)


class ExecutorPartitionSpec(TaskSpec):
    fault: Literal["partition"]
    target: Literal["executor"]


@faults.register("partition", "executor")
class ExecutorPartition(TaskFault):
    """The executor is cut off from driver, services and cluster; another attempt takes over its task; then it is back."""

    Spec: ClassVar[type[FaultSpec]] = ExecutorPartitionSpec
    about: ClassVar[str] = (
        "an executor is cut off from all others in the middle of a task, until another attempt took over"
    )

    def __init__(self, spec: ExecutorPartitionSpec) -> None:
        super().__init__(spec)
        self._cut_off = False

    @classmethod
    def needs_control(cls, spec: TaskSpec) -> str | None:
        return EXECUTORS_NETWORK

    @classmethod
    def placement(cls, spec: ExecutorPartitionSpec, scenario: Scenario) -> Placement:
        n = spec.at.batch
        proof = (
            f"batch {n} was committed by another attempt while the executor was cut off; its frame arrived after that"
        )
        return placement_at_frame(spec.at.point, proof, scenario)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        victim = self._find(context, seen)
        if isinstance(victim, Proof):
            return victim
        spark, process, n = context.stack.spark, victim.process, seen.batch
        assert spark is not None and self._stopped is not None, "an executor has sent the frame"
        start = context.job.current_start
        self._cut_off = True
        evidence: list[str | Evidence] = [*victim.evidence, spark.isolate(process.jvm)]
        if committed(context, seen.query, n):
            return missed(*evidence, f"batch {n} was committed before the executor was cut off")
        try:
            wait_until(f"batch {n} to be committed", lambda: committed(context, seen.query, n), deadline_s=RESTART_S)
        except WaitTimeout:
            return missed(*evidence, _NO_OTHER_ATTEMPT)
        if context.job.current_start > start:
            again = "the driver was started again meanwhile: a replay committed the batch, not another attempt"
            return missed(*evidence, again)
        evidence.append(f"batch {n} was committed by Spark while it was cut off")
        won = partial(describe_winner, victim=process)
        evidence.append(wait_for_event_log(context, seen, won, "another attempt that succeeded"))
        hit = victim.hit
        self._stopped.rule.release()
        wait_until("the answer to its frame", lambda: hit.answer or hit.undeliverable, deadline_s=ANSWER_S)
        if hit.answer is None:
            return missed(*evidence, hit.undeliverable or "the frame was never delivered")
        evidence.append(
            Evidence(
                "its frame was delivered after the batch's commit; the service answered",
                detail=answered(hit.answer.facts),
            )
        )
        self._reconnect(context)
        return proven(*evidence, "then it was connected again")

    def _reconnect(self, context: FaultContext) -> None:
        if self._cut_off and context.stack.spark is not None:
            context.stack.spark.rejoin()
            self._cut_off = False

    def heal(self, context: FaultContext) -> None:
        self._reconnect(context)
        super().heal(context)
