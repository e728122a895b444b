"""Partition of an executor in the middle of a task: nothing reaches it, and nothing that it sends arrives, until it was replaced.

The executor's container is disconnected from its network, as when a machine loses its switch. It runs on, and what its tasks have
sent before is on its way. Spark starts another attempt elsewhere, once the executor's heartbeats have been missing for
``spark.network.timeout``. Then the frame at which the fault struck is delivered, and the executor is connected again.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

from onceproof.faults.context import FaultContext
from onceproof.faults.contract import EXECUTORS_NETWORK, Occurrence, Placement, Proof, faults, missed, proven
from onceproof.faults.evidence.item import Evidence
from onceproof.faults.frames import placement_at_frame
from onceproof.faults.placement import committed
from onceproof.faults.tasks import TaskFault, TaskSpec, describe_winner, wait_for_event_log, why_not_taken_over
from onceproof.scenario.model import FaultSpec, Scenario

_OTHER_ATTEMPT = "once the executor's heartbeats have been missing for spark.network.timeout (120 s by default)"


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
        assert spark is not None, "an executor has sent the frame"
        start = context.job.current_start
        self._cut_off = True
        how = spark.isolate(process.jvm)
        if how is None:
            return missed(*victim.evidence, "its executor ended before it could be cut off")
        evidence: list[str | Evidence] = [*victim.evidence, how]
        if committed(context, seen.query, n):
            return missed(*evidence, f"batch {n} was committed before the executor was cut off")
        if (why := why_not_taken_over(context, seen, start, _OTHER_ATTEMPT)) is not None:
            return missed(*evidence, why)
        evidence.append(f"batch {n} was committed by Spark while it was cut off")
        won = partial(describe_winner, victim=process)
        evidence.append(wait_for_event_log(context, seen, won, "another attempt that succeeded"))
        answer = self._deliver(victim)
        if isinstance(answer, str):
            return missed(*evidence, answer)
        evidence.append(answer)
        self._reconnect(context)
        return proven(*evidence, "then it was connected again")

    def _reconnect(self, context: FaultContext) -> None:
        if self._cut_off and context.stack.spark is not None:
            context.stack.spark.rejoin()
            self._cut_off = False

    def heal(self, context: FaultContext) -> None:
        self._reconnect(context)
        super().heal(context)
