"""Stall: a driver is stopped, a second one takes over the same checkpoint, and the first one resumes as a zombie.

The fault sends SIGSTOP to the driver's whole session (Python and JVM), which resembles a long garbage collection or a paused
virtual machine. It then starts a second driver, as a cluster does that takes the first for dead, and sends SIGCONT once the
second has committed a batch of its own. Spark's checkpoint does not fence the sink: the first driver finishes its batch, and
learns of its successor only at its next log entry (SPARK-21145; M. Kleppmann, *Designing Data-Intensive Applications*,
chapter 8, on fencing tokens).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, faults
from onceproof.faults.job import Job, Try, at_checkpoint
from onceproof.faults.placement import placement_at
from onceproof.faults.takeover import POINTS, Takeover, TakesOver
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.stack.processes import procfs
from onceproof.stack.processes.owner import Service


class DriverStallSpec(FaultSpec):
    fault: Literal["stall"]
    target: Literal["driver"]


@faults.register("stall", "driver")
class DriverStall(TakesOver[DriverStallSpec]):
    """The driver pauses, is replaced, and resumes as a zombie once its successor has committed a batch of its own."""

    Spec: ClassVar[type[FaultSpec]] = DriverStallSpec
    about: ClassVar[str] = "SIGSTOP of the driver while a second one takes over, then SIGCONT (a zombie)"

    @classmethod
    def placement(cls, spec: DriverStallSpec, scenario: Scenario) -> Placement:
        proof = (
            f"batch {spec.at.batch} was open when the driver was stopped; a second driver committed it and a batch of its "
            "own; then the first one resumed and ended; the sinks' content before and after that"
        )
        return placement_at(spec.at.point, proof, scenario)

    @classmethod
    def tries(cls, job: Job) -> Iterable[Try]:
        return at_checkpoint(job, POINTS, {"target": "driver"})

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self._takeover = Takeover(context, seen, stopped=True)
        context.timeline.emit("driver.stalled", start=self._takeover.start, query=seen.query, batch=seen.batch)
        if seen.release is not None:
            seen.release()  # the sink is stopped as well, and reads the answer only after SIGCONT

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        assert self._takeover is not None
        takeover = self._takeover

        def why_not_stopped(_evidence: list[str]) -> str | None:
            if _is_stopped(takeover.first):
                return None
            return f"driver start {takeover.start} was no longer stopped: another process had resumed or killed it"

        return takeover.prove(
            "stopped", "the driver was stopped", why_not_stopped, takeover.first.thaw, after="after SIGCONT"
        )


def _is_stopped(zombie: Service) -> bool:
    """Whether the driver exists and all its processes are stopped."""
    of_session = [one.pid for one in procfs.table().values() if one.session == zombie.pid]
    return zombie.is_running() and all(map(procfs.is_stopped, of_session))
