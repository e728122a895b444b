"""Fence: a second driver takes over on the same checkpoint while the first one lives: split brain, and who is fenced off.

As from a cluster manager that starts a job twice, or that lost sight of a driver which is well. Unlike in a `stall` nothing
is stopped: only the first driver's query waits, in its own log write or at its sink's commit, until the second has committed
that batch and one of its own. Its JVM, its heartbeats, the background threads of its producers and its sessions with the
services go on all the while: a lease is renewed, a lock stays taken, a transaction stays open and a coordinator's word
arrives. Then its query is let go (KIP-98, KIP-360 on producer epochs; SPARK-21145; M. Kleppmann, *Designing Data-Intensive
Applications*, chapter 8, on fencing tokens; Jepsen's reports on split brain).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults
from onceproof.faults.evidence.sink_state import sink_state
from onceproof.faults.placement import has_own_file_manager, instruments_of, placement, point_problems
from onceproof.faults.takeover import PLACES, Takeover, batch_problems
from onceproof.instruments.checkpoint_gate import FILE_MANAGER
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stack.processes import procfs
from onceproof.stack.processes.owner import Service


class FenceSpec(FaultSpec):
    fault: Literal["fence"]
    target: Literal["driver"]


@faults.register("fence")
class Fence:
    """The job is started a second time; the first driver's query waits meanwhile, and all else of it lives."""

    Spec: ClassVar[type[FaultSpec]] = FenceSpec
    about: ClassVar[str] = (
        "a second driver takes over on the same checkpoint while the first one lives, and then goes on: split brain"
    )

    def __init__(self, spec: FenceSpec) -> None:
        self._spec = spec
        self._takeover: Takeover | None = None
        self._go: Callable[[], None] | None = None
        self._pids: list[int] = []

    @classmethod
    def problems(cls, spec: FenceSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = point_problems(spec, PLACES) + batch_problems(spec, scenario)
        if len(scenario.pipeline.queries) > 1:
            message = "only one query waits: the others of both drivers would write their logs at once, and one driver ends of it"
            problems.append(SpecProblem(("target",), message, "use stall, which stops all queries of the first driver"))
        if spec.at.point is not Point.BEFORE_SINK_COMMIT:
            if spec.at.point in PLACES and has_own_file_manager(scenario):
                message = f"the job sets {FILE_MANAGER} itself, so that nobody can hold its log write"
                problems.append(SpecProblem(("at", "point"), message, "let the job use Spark's default"))
            return problems
        if all(output.topic is None for output in scenario.outputs.values()):
            message = "a Postgres sink holds its progress row there: nobody can take over while the first driver waits"
            problems.append(
                SpecProblem(("at", "point"), message, "use after-offset-log, or stall, which says how long")
            )
        problems += [
            SpecProblem(
                ("at", "batch"),
                f"{other.fault} {other.target} is at the same commit, and lets the sink go when it is settled",
                "use another batch",
            )
            for other in scenario.faults(FaultSpec)
            if other is not spec and (other.at.batch, other.at.point) == (spec.at.batch, spec.at.point)
        ]
        return problems

    @classmethod
    def placement(cls, spec: FenceSpec, scenario: Scenario) -> Placement:
        n = spec.at.batch
        proof = (
            f"batch {n} was open when the first driver's query waited; a second driver committed it and a batch of its own, "
            "both alive; then the first went on, and got the error; the sinks before and after"
        )
        how = placement(spec.at.point, proof, scenario)
        if how.exactness == "approximate":  # the watcher hears of a write after it was made: nothing waits
            return Placement(
                "n/a", "none", f"the job sets {FILE_MANAGER} itself, so nobody can hold its log write", proof
            )
        return how

    @property
    def needs_input(self) -> bool:
        """Until the second driver has planned a batch of its own."""
        return self._takeover is not None and self._takeover.needs_input

    def matches(self, seen: Occurrence) -> bool:
        # A Postgres sink would keep the second driver from its progress row for as long as the first one is held.
        held = seen.instrument != "watcher" and seen.sink != "postgres"
        return seen.point is self._spec.at.point and held and seen.instrument in instruments_of(seen.point)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        # A parked sink waits for its release; a log write would go on when this returns.
        self._go = seen.hold() if seen.hold is not None else seen.release
        assert self._go is not None, "it matches only where the driver waits"
        if len(context.checkpoint.queries()) > 1:  # as the scenario need not say
            self._go()
            return
        self._takeover = Takeover(context, seen, stopped=False)
        self._pids = _driver_of(self._takeover.first)
        context.timeline.emit("driver.doubled", start=self._takeover.start, query=seen.query, batch=seen.batch)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        if self._takeover is None:
            why = "the job has several queries, of which only one could wait: the others of both drivers would write at once"
            return Proof(False, (why,))
        assert self._go is not None
        taken, n = self._takeover, seen.batch
        if not taken.was_open:
            return Proof(False, (f"batch {n} was not open any more when the second driver was started",))
        words = [
            f"driver start {taken.start} waited at {seen.point} of batch {n}: offsets/{n} there, commits/{n} missing"
        ]
        gone_on, said = taken.wait()
        words.append(said)
        if not gone_on:
            return Proof(False, tuple(words))
        before = sink_state(context.stack)
        second = context.job.pids()
        if (dead := _not_alive(taken.first, self._pids)) is not None or not second:
            which = taken.start if dead is not None else taken.start + 1
            return Proof(False, (*words, f"driver start {which} was not alive any more: {dead or 'it is gone'}"))
        words.append(
            f"both were alive then: start {taken.start} (processes {_listed(self._pids)}, none stopped) "
            f"and start {taken.start + 1} (processes {_listed(second)})"
        )
        return taken.resume_first(self._go, before, words, how="released")

    def heal(self, context: FaultContext) -> None:
        try:
            if self._takeover is not None:
                self._takeover.end()
        finally:  # only then: it would write once more
            if self._go is not None:
                self._go()


def _driver_of(service: Service) -> list[int]:
    """The job's first process and its children: Python and the JVM, without the workers, which come and go."""
    return [one.pid for one in procfs.table().values() if service.pid in (one.pid, one.parent)]


def _not_alive(first: Service, pids: Sequence[int]) -> str | None:
    """Why the driver is not as alive as it was when it consisted of ``pids``; None if it is."""
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
