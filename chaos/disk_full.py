"""Disk full: the disk of the checkpoint has no room left, so Spark cannot write a log entry, and its query fails.

The output is elsewhere and has room: what a batch has written there stays, although Spark cannot record the batch. Spark stops the
query, and replays the batch once there is room again.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed, proven
from onceproof.faults.evidence.item import Evidence
from onceproof.faults.frames import wait_for_commit
from onceproof.faults.placement import AtItsPoint, committed, placement_at, planned, point_problems
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point

_POINTS = (Point.BEFORE_OFFSET_LOG, Point.AFTER_SINK_COMMIT)
"""Where the driver waits before it creates a file."""
NO_SPACE = "No space left on device"
"""The kernel's words for ENOSPC, which Java and Hadoop pass on."""
_FAILS_S = 30.0
"""The write fails at once; then Spark stops the query, and logs why."""


class DiskFullSpec(FaultSpec):
    fault: Literal["disk-full"]
    target: Literal["checkpoint"]


@faults.register("disk-full")
class DiskFull(AtItsPoint[DiskFullSpec]):
    """Every checkpoint file that any driver writes meets a full disk, until the write at the fault's point has failed.

    It needs no file system of its own, and no rights: the checkpoint file system writes the file's bytes to ``/dev/full``, which the
    kernel refuses as it does on a full disk. Everything else on the disk has room, unlike on a disk that is really full.
    """

    Spec: ClassVar[type[FaultSpec]] = DiskFullSpec
    about: ClassVar[str] = "the disk of the checkpoint is full: a log entry cannot be written, and the query fails"

    def __init__(self, spec: DiskFullSpec) -> None:
        self._spec = spec
        self._struck = False
        self._logged_before = False

    @classmethod
    def problems(cls, spec: DiskFullSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = point_problems(spec, _POINTS)
        if scenario.stack.object_store is not None:
            message = "the checkpoint is in the stack's object store, and not on a disk of the job"
            problems.append(SpecProblem(("target",), message, "remove object_store from the stack"))
        return problems

    @classmethod
    def placement(cls, spec: DiskFullSpec, scenario: Scenario) -> Placement:
        proof = (
            f"the kernel's error in the driver's log, {_entry(spec.at.point, spec.at.batch)} missing, and the batch's commit once there "
            "is room again"
        )
        return placement_at(spec.at.point, proof, scenario)

    def matches(self, seen: Occurrence) -> bool:
        """Only the checkpoint file system can refuse a write; the watcher sees none before it is done."""
        return super().matches(seen) and seen.instrument == "checkpoint"

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self._struck = True
        self._logged_before = context.job.log_contains(NO_SPACE)
        context.fill_disk(True)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        n, entry = seen.batch, _entry(seen.point, seen.batch)
        if self._logged_before:
            return missed("this driver had already logged the kernel's error, so another one cannot be distinguished")
        try:
            wait_until(
                f"the driver to log {NO_SPACE!r}", lambda: context.job.log_contains(NO_SPACE), deadline_s=_FAILS_S
            )
        except WaitTimeout as never:
            return missed(never.message)
        before_plan = seen.point is Point.BEFORE_OFFSET_LOG
        if (planned if before_plan else committed)(context, seen.query, n):
            return missed(f"{entry} was written all the same")
        evidence = Evidence(f"the driver could not write {entry}, which is missing; the kernel said", detail=NO_SPACE)
        self.heal(context)
        return proven(evidence, "then the disk had room again", wait_for_commit(context, seen))

    def heal(self, context: FaultContext) -> None:
        if self._struck:
            context.fill_disk(False)


def _entry(point: Point, batch: int) -> str:
    return f"{'offsets' if point is Point.BEFORE_OFFSET_LOG else 'commits'}/{batch}"
