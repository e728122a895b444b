"""Crash at a frame: the driver is killed while the protocol proxy holds one request of its batch, which is never delivered.

The driver of any job can thus be killed in the middle of a write to a sink: between two statements, right before its COMMIT, or
between the sinks of one batch. Every request before the held one has arrived, and none after it was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed, proven
from onceproof.faults.evidence.sink_state import changes, sink_state
from onceproof.faults.frames import (
    AtItsFrame,
    StoppedFrame,
    commit_problems,
    frame_problems,
    placement_at_frame,
    wait_for_commit,
    wait_for_restart,
)
from onceproof.faults.job import Job, Try, at_frames
from onceproof.faults.placement import committed, planned, point_problems
from onceproof.instruments.proxy.frames import Frame
from onceproof.instruments.proxy.rules import Hit, now
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stores.contract import store_of
from onceproof.stores.frames import FrameSpec, HasFrames, Service, StoreFrames

_POINTS = (Point.IN_TASKS, Point.BEFORE_SINK_COMMIT, Point.BETWEEN_SINKS)


class CrashAtFrameSpec(FaultSpec):
    fault: Literal["crash-at-frame"]
    target: Literal["driver"]
    service: Service = Field(description="the service to which the request is sent")
    frame: FrameSpec = Field(default_factory=FrameSpec, description="which request (default: the commit)")


@faults.register("crash-at-frame")
class CrashAtFrame(AtItsFrame):
    """SIGKILL of the driver (JVM and Python) at the n-th request of a batch that matches ``frame``."""

    Spec: ClassVar[type[FaultSpec]] = CrashAtFrameSpec
    about: ClassVar[str] = (
        "SIGKILL of the driver while one request of its batch is on its way, which then never arrives"
    )

    def __init__(self, spec: CrashAtFrameSpec) -> None:
        self._spec = spec
        self._stopped = StoppedFrame(spec.frame, spec.service, "drop-request", hold=True)
        self._before: Mapping[str, str] = {}

    @classmethod
    def problems(cls, spec: CrashAtFrameSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = point_problems(spec, _POINTS)
        named = frame_problems(spec.frame, spec.service, scenario, query=spec.at.query)
        if spec.at.point is Point.BEFORE_SINK_COMMIT and not named:
            problems += commit_problems(spec.frame, spec.service)
        return problems + [SpecProblem(("service",), p.message, p.hint) if p.loc == ("target",) else p for p in named]

    @classmethod
    def placement(cls, spec: CrashAtFrameSpec, scenario: Scenario) -> Placement:
        also = ""
        if spec.at.point is Point.BETWEEN_SINKS:
            also = ", and the batch had written to another output of its query by then"
        proof = (
            f"the request was never delivered, commits/{spec.at.batch} was missing{also}; the driver was started again, "
            f"and batch {spec.at.batch} committed"
        )
        return placement_at_frame(spec.at.point, proof, scenario)

    @classmethod
    def tries(cls, job: Job) -> Iterable[Try]:
        return at_frames(job, {"target": "driver"})

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        # Not while the job is stopped: it may hold a lock for which this has to wait.
        self._before = sink_state(context.stack)
        self._stopped.arm(context, seen)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        found = self._stopped.wait_for_frame(context, seen)
        if isinstance(found, Proof):
            return found
        with context.job.no_start():  # the next driver would change what this one has left behind
            start, evidence = self._kill(context, seen, found)
        if isinstance(evidence, Proof):
            return evidence
        return proven(*evidence, wait_for_restart(context, start), wait_for_commit(context, seen))

    def _kill(self, context: FaultContext, seen: Occurrence, found: Hit) -> tuple[int, list[str] | Proof]:
        """Kill the driver. Returns which start it was, and the evidence from what it left behind, or a miss."""
        n = seen.batch
        killed_at = now()
        start = context.job.kill_driver()
        state = (planned(context, seen.query, n), committed(context, seen.query, n))
        self._stopped.rule.release()  # the rule drops the request
        evidence = [
            f"the driver was killed while {self._stopped.store.describe(found.frame)} was held by {found.proxy}"
        ]
        if (why := found.lost_before(killed_at)) is not None:
            return start, missed(*evidence, why)
        if state != (True, False) or found.delivered_at is not None:
            return start, missed(*evidence, f"batch {n} was no longer open, or the request had been delivered")
        evidence.append(f"left behind: offsets/{n} written, commits/{n} missing, and the request never delivered")
        after = sink_state(context.stack)
        written = [f"written by the batch until then: {change}" for change in changes(self._before, after)]
        evidence += written or ["the batch had written nothing to any sink until then"]
        if self._spec.at.point is Point.BETWEEN_SINKS:
            others = _other_places(context, seen.query, self._stopped.store, found.frame)
            changed = sorted(place for place in others if self._before.get(place) != after.get(place))
            if not changed:
                nothing = f"the batch had not written to the query's other outputs ({', '.join(sorted(others))})"
                why = nothing if others else "the request belongs to every output of the query"
                return start, missed(*evidence, f"that is not the state at {self._spec.at.point}: {why}")
            evidence.append(
                f"so the batch had written to {', '.join(changed)}, and the stopped request was to another sink"
            )
        return start, evidence

    def heal(self, context: FaultContext) -> None:
        self._stopped.close(context)


def _other_places(context: FaultContext, query: str, store: StoreFrames, frame: Frame) -> set[str]:
    """The query's outputs without those to which the frame itself writes, named as in `onceproof.stores.contract.State`."""
    assert context.scenario is not None, "every run sets it"
    alone = len({*context.checkpoint.queries(), *context.scenario.pipeline.queries}) < 2
    outputs = [o for o in context.scenario.outputs.values() if o.query == query or (o.query is None and alone)]
    stores = [(one, store_of(one)) for one in outputs]
    of_store = [one for one, its in stores if isinstance(its, HasFrames) and its.frames is store]
    own = store.written_by(frame, of_store, context.stack)
    return {its.name(one) for one, its in stores if one not in own}
