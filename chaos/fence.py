"""Fence: a second driver takes over the same checkpoint while the first one is alive: split brain, which a sink must fence off.

This happens when a cluster manager starts a job twice, or loses contact with a healthy driver. Unlike in a `stall` no process
is stopped: only the first driver's query waits, in its own log write or at its sink's commit, until the second driver has
committed that batch and one of its own. The first driver's JVM, heartbeats, producer threads and sessions with the services
keep running: leases are renewed, locks stay held, transactions stay open, and messages of a coordinator arrive. Then its query
resumes (KIP-98, KIP-360 on producer epochs; SPARK-21145; M. Kleppmann, *Designing Data-Intensive Applications*, chapter 8, on
fencing tokens; Jepsen's reports on split brain).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Literal

from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed
from onceproof.faults.job import Job, Try, at_checkpoint
from onceproof.faults.placement import PARKED, has_own_file_manager, placement_at
from onceproof.faults.takeover import POINTS, Takeover, TakesOver
from onceproof.instruments.checkpoint_gate import FILE_MANAGER
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stack.processes import procfs
from onceproof.stack.processes.owner import Service


class FenceSpec(FaultSpec):
    fault: Literal["fence"]
    target: Literal["driver"]


@faults.register("fence")
class Fence(TakesOver[FenceSpec]):
    """The job is started a second time while the first driver's query waits; the rest of the first driver keeps running."""

    Spec: ClassVar[type[FaultSpec]] = FenceSpec
    about: ClassVar[str] = (
        "a second driver takes over the same checkpoint while the first one is alive, which then resumes: split brain"
    )

    def __init__(self, spec: FenceSpec) -> None:
        super().__init__(spec)
        self._resume: Callable[[], None] | None = None
        self._pids: list[int] = []

    @classmethod
    def problems(cls, spec: FenceSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = super().problems(spec, scenario)
        if len(scenario.pipeline.queries) > 1:
            message = (
                "fence holds only one query: the others of both drivers would write the same logs, and one driver fails"
            )
            problems.append(SpecProblem(("target",), message, "use stall, which stops all queries of the first driver"))
        if spec.at.point is not Point.BEFORE_SINK_COMMIT:
            if spec.at.point in POINTS and has_own_file_manager(scenario):
                message = f"the job sets {FILE_MANAGER} itself, so its log write cannot be held"
                problems.append(SpecProblem(("at", "point"), message, "let the job use Spark's default"))
            return problems
        if all(output.topic is None for output in scenario.outputs.values()):
            message = (
                "a Postgres sink holds its progress row locked there: no driver can take over while the first one waits"
            )
            hint = "use after-offset-log, or stall, which shows how long the second driver waits for the lock"
            problems.append(SpecProblem(("at", "point"), message, hint))
        for other in scenario.faults(FaultSpec):
            if other is not spec and (other.at.batch, other.at.point) == (spec.at.batch, spec.at.point):
                message = (
                    f"{other.fault} {other.target} strikes at the same commit, and releases the sink when it is done"
                )
                problems.append(SpecProblem(("at", "batch"), message, "use another batch"))
        return problems

    @classmethod
    def placement(cls, spec: FenceSpec, scenario: Scenario) -> Placement:
        n = spec.at.batch
        proof = (
            f"batch {n} was open while the first driver's query waited; a second driver committed it and a batch of its own "
            "while both were alive; then the first one resumed and got the error; the sinks' content before and after that"
        )
        how = placement_at(spec.at.point, proof, scenario)
        if how.exactness == "approximate":  # the watcher sees a write only afterwards: the driver does not wait
            return Placement(
                "n/a", "none", f"the job sets {FILE_MANAGER} itself, so its log write cannot be held", proof
            )
        return how

    @classmethod
    def more_tries(cls, job: Job) -> Iterable[Try]:
        parked = any("kafka" in query.parks for query in job.queries)
        return at_checkpoint(job, tuple(p for p in POINTS if parked or p not in PARKED), {"target": "driver"})

    def matches(self, seen: Occurrence) -> bool:
        # While the first driver is held, its Postgres sink would keep the progress row locked for the second one.
        held = seen.instrument != "watcher" and seen.sink != "postgres"
        return held and super().matches(seen)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        # A parked sink waits for its release; a log write would continue when this returns, unless it is held.
        self._resume = seen.hold() if seen.hold is not None else seen.release
        assert self._resume is not None, "it matches only where the driver waits"
        if len(context.checkpoint.queries()) > 1:  # the scenario need not declare its queries
            self._resume()
            return
        self._takeover = Takeover(context, seen, stopped=False)
        self._pids = _driver_of(self._takeover.first)
        context.timeline.emit("driver.doubled", start=self._takeover.start, query=seen.query, batch=seen.batch)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        if self._takeover is None:
            why = "the job has several queries, and fence holds only one: no second driver was started"
            return missed(why)
        assert self._resume is not None
        takeover = self._takeover

        def why_not_alive(evidence: list[str]) -> str | None:
            second = context.job.pids()
            dead = _why_not_alive(takeover.first, self._pids)
            if dead is not None:
                return f"driver start {takeover.start} was no longer alive: {dead}"
            if not second:
                return f"driver start {takeover.start + 1} was no longer alive: it has no process"
            evidence.append(
                f"both drivers were alive then: start {takeover.start} (processes {_listed(self._pids)}, none stopped) "
                f"and start {takeover.start + 1} (processes {_listed(second)})"
            )
            return None

        return takeover.prove(
            "held", "the second driver was started", why_not_alive, self._resume, after="after its release"
        )

    def heal(self, context: FaultContext) -> None:
        try:
            super().heal(context)
        finally:  # only after the first driver is dead: otherwise its query would write once more
            if self._resume is not None:
                self._resume()


def _driver_of(service: Service) -> list[int]:
    """The job's first process and its children: Python and the JVM, without the workers, which start and end all the time."""
    return [one.pid for one in procfs.table().values() if service.pid in (one.pid, one.parent)]


def _why_not_alive(first: Service, pids: Sequence[int]) -> str | None:
    """Why the driver with the processes ``pids`` is no longer alive and running; None if it is."""
    if not first.is_running():
        return f"it ended with exit code {first.returncode}"
    for pid in pids:
        stat = procfs.stat(pid)
        if stat is None or stat.is_zombie:
            return f"process {pid} has ended"
        if stat.state in "tT":
            return f"process {pid} was stopped"
    return None


def _listed(pids: Sequence[int]) -> str:
    return ", ".join(map(str, pids))
