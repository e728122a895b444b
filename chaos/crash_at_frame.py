"""Crash at a frame: the driver is killed while one request of its batch is held in mid-air, and that request never arrives.

So a driver, also a foreign one, dies in the middle of what it does to a sink: between two statements, right before its COMMIT,
between the sinks of one batch. What was sent before has arrived; nothing after was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from onceproof.conductor import Site
from onceproof.faults import Occurrence, Placement, Proof, SpecProblem, faults
from onceproof.frame_faults import (
    FrameSpec,
    StoppedFrame,
    frame_placement,
    frame_problems,
    is_planned,
    wait_for_commit,
    which,
)
from onceproof.placing import RESTART_S, committed, planned, point_problems
from onceproof.points import Point
from onceproof.qualify.job import Job, Try, at_frames
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.sink_state import changes, sink_state
from onceproof.waiting import wait_until

_PLACES = (Point.IN_TASKS, Point.BEFORE_SINK_COMMIT, Point.BETWEEN_SINKS)


class CrashAtFrameSpec(FaultSpec):
    fault: Literal["crash-at-frame"]
    target: Literal["driver"]
    service: Literal["postgres", "kafka"] = Field(description="to which the request goes")
    frame: FrameSpec = Field(default_factory=FrameSpec, description="which request (default: the commit)")


@faults.register("crash-at-frame")
class CrashAtFrame:
    """SIGKILL of the driver (JVM and Python) at the n-th request of a batch that says what ``frame`` says."""

    Spec: ClassVar[type[FaultSpec]] = CrashAtFrameSpec
    about: ClassVar[str] = (
        "SIGKILL of the driver while one request of its batch is on the way, which then never arrives"
    )

    def __init__(self, spec: CrashAtFrameSpec) -> None:
        self._spec = spec
        self._stopped = StoppedFrame(spec.frame, spec.service, "drop-request", hold=True)
        self._before: Mapping[str, str] = {}

    @classmethod
    def reads_frames(cls, spec: CrashAtFrameSpec) -> bool:
        return True

    @classmethod
    def problems(cls, spec: CrashAtFrameSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = point_problems(spec, _PLACES)
        named = frame_problems(spec.frame, spec.service, scenario, query=spec.at.query)
        return problems + [SpecProblem(("service",), p.message, p.hint) if p.loc == ("target",) else p for p in named]

    @classmethod
    def placement(cls, spec: CrashAtFrameSpec, scenario: Scenario) -> Placement:
        also = ", with something of the batch in a sink by then" if spec.at.point is Point.BETWEEN_SINKS else ""
        proof = (
            f"the request was never delivered, commits/{spec.at.batch} was missing{also}; the driver was started again, "
            f"and batch {spec.at.batch} committed"
        )
        return frame_placement(spec.at.point, proof, scenario)

    @classmethod
    def tries(cls, job: Job) -> Iterable[Try]:
        return at_frames(job, {"target": "driver"})

    def matches(self, seen: Occurrence) -> bool:
        return is_planned(seen)

    def strike(self, site: Site, seen: Occurrence) -> None:
        with site.job.frozen():
            self._before = sink_state(site.stack)
            self._stopped.arm(site, seen)

    def prove(self, site: Site, seen: Occurrence) -> Proof:
        n = seen.batch
        found = self._stopped.found(site, seen)
        if isinstance(found, Proof):
            return found
        start = site.job.kill_driver()
        state = (planned(site, seen.query, n), committed(site, seen.query, n))
        self._stopped.rule.release()  # it goes nowhere: the rule loses it
        words = [f"the driver was killed while {which(found.frame)} was held by {found.proxy}"]
        if state != (True, False) or found.delivered_at is not None:
            return Proof(False, (*words, f"batch {n} was not open any more, or the request had been delivered"))
        words.append(f"left behind: offsets/{n} there, commits/{n} missing, and the request never delivered")
        by_then = changes(self._before, sink_state(site.stack))
        words += [f"in the batch until then, {change}" for change in by_then] or ["no sink had anything of the batch"]
        if self._spec.at.point is Point.BETWEEN_SINKS and not by_then:
            return Proof(False, (*words, f"that is not the state of {self._spec.at.point}"))
        wait_until("the driver to be started again", lambda: site.job.restarted_since(start), deadline_s=RESTART_S)
        return Proof(True, (*words, "the driver was started again", wait_for_commit(site, seen)))

    def heal(self, site: Site) -> None:
        self._stopped.close(site)
