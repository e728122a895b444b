"""Shared by lost ack and lost request: both cut one direction of the connection over which a sink commits.

There are two ways. At ``before-sink-commit`` a sink of `onceproof.sinks` is parked with everything flushed; the connection is
cut; the sink is released and sends its COMMIT or EndTxn. The harness then asks the service directly for the outcome, and the
sink must have reported an error. At ``commit-lost`` and ``commit-unacknowledged`` the protocol proxy stops the frame itself, in
any job (`onceproof.faults.frames`).
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, missed, proven
from onceproof.faults.evidence.item import Evidence
from onceproof.faults.frames import (
    StoppedFrame,
    at_plan,
    frame_problems,
    placement_at_frame,
    prove_loss,
    wait_for_commit,
)
from onceproof.faults.job import Job, Try, at_checkpoint, at_commit
from onceproof.faults.placement import one_line, placement_at, point_problems
from onceproof.instruments.failpoints import SinkEvent
from onceproof.instruments.proxy.rules import Action, Cut
from onceproof.scenario.model import At, FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stack.api import Proxy, Stream
from onceproof.stores.frames import FrameSpec, ParkedCommit, Service, frames_of

_ERROR_S = 45.0
"""Limit for the sink to notice: the commit time-outs of the scenarios are 2 s; a user's own sink may have longer ones."""


class CommitAt(At):
    """The position of the fault; the default point is the one where a sink parks before its commit."""

    point: Point = Field(Point.BEFORE_SINK_COMMIT, description="the place in the batch's commit protocol")


class CutCommitSpec(FaultSpec):
    target: Service
    at: CommitAt
    frame: FrameSpec | None = Field(None, description="which request; only where the protocol proxy places the fault")
    cut: Cut = Field("reset", description="what the client sees there: reset, close, or silence until its own time-out")


def _nothing_committed(frame: FrameSpec, spec: CutCommitSpec) -> list[SpecProblem]:
    """A problem if the frame commits nothing: losing it is then no lost commit, and no lost answer to one."""
    store = frames_of(spec.target)
    kind = frame.kind or store.commit
    if kind in store.applying and frame.committed is not False:
        return []
    loc = ("frame", "kind" if kind not in store.applying else "committed")
    what = f"this {kind} aborts" if kind in store.applying else f"{kind} commits nothing"
    hint = f"use {' or '.join(store.applying)}" + (" with committed: true" if spec.target == "kafka" else "")
    return [SpecProblem(loc, f"{what}: at {spec.at.point.value} a commit or its answer is lost", hint)]


class CutCommit:
    """Base of the two faults; ``stream`` is the direction that is cut."""

    stream: Stream

    def __init__(self, spec: CutCommitSpec) -> None:
        self._spec = spec
        self._stopped: StoppedFrame | None = None
        if self.reads_frames(spec):
            action: Action = "drop-answer" if self.stream == "downstream" else "drop-request"
            self._stopped = StoppedFrame(spec.frame or FrameSpec(), spec.target, action, hold=True, cut=spec.cut)
        self._proxies: list[Proxy] = []
        self._struck_at = 0.0
        self._store = frames_of(spec.target)
        self._parked: ParkedCommit | None = None

    @classmethod
    def frame_point(cls) -> Point:
        """The point at which the protocol proxy places it."""
        return Point.COMMIT_UNACKNOWLEDGED if cls.stream == "downstream" else Point.COMMIT_LOST

    @classmethod
    def reads_frames(cls, spec: CutCommitSpec) -> bool:
        return spec.at.point is cls.frame_point()

    @classmethod
    def problems(cls, spec: CutCommitSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = point_problems(spec, (Point.BEFORE_SINK_COMMIT, cls.frame_point()))
        if cls.reads_frames(spec):
            frame = spec.frame or FrameSpec()
            named = frame_problems(frame, spec.target, scenario, query=spec.at.query)
            return problems + (named or _nothing_committed(frame, spec))
        if spec.frame is not None:
            message = f"`frame` has no effect at {spec.at.point}, where a parked sink is cut off at its own commit"
            hint = f"use at: {{point: {cls.frame_point()}}}, or remove `frame`"
            problems.append(SpecProblem(("frame",), message, hint))
        if spec.cut != "reset":
            message = f"`cut` has no effect at {spec.at.point}, where Toxiproxy cuts the connection"
            hint = f"use at: {{point: {cls.frame_point()}}}, or remove `cut`"
            problems.append(SpecProblem(("cut",), message, hint))
        missing = frames_of(spec.target).missing(scenario)
        return problems if missing is None else [*problems, missing]

    @classmethod
    def tries(cls, job: Job) -> Iterator[Try]:
        """One try at the frame of each commit, and one at the commit of each sink that can park and then reports its error."""
        yield from at_commit(job, cls.frame_point())
        for query in job.queries:
            for target in query.parks:
                words = f"{target} sink, parked"
                yield Try(Point.BEFORE_SINK_COMMIT, {"target": target}, job.at_query(query.name), words=words)
        if not any(query.parks for query in job.queries):
            yield from at_checkpoint(job, (Point.BEFORE_SINK_COMMIT,), {})

    @classmethod
    def placement(cls, spec: CutCommitSpec, scenario: Scenario) -> Placement:
        proof = {
            "downstream": "the service has the commit, and the sink reported an error",
            "upstream": "the sink reported an error, and the service does not have the commit until the fault is healed",
        }[cls.stream]
        if cls.reads_frames(spec):
            proof = "the service's answer to it" if cls.stream == "downstream" else "that it was never delivered"
            return placement_at_frame(spec.at.point, proof + frames_of(spec.target).proof, scenario)
        return placement_at(spec.at.point, proof, scenario)

    def matches(self, seen: Occurrence) -> bool:
        if self._stopped is not None:
            return at_plan(seen)
        return seen.instrument == "failpoint" and seen.point is self._spec.at.point and seen.sink == self._spec.target

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self._struck_at = context.timeline.now()
        if self._stopped is not None:
            self._stopped.arm(context, seen)
            return
        self._parked = self._store.parked(context.stack, seen.facts)
        self._proxies = self._store.proxies(context.stack)
        toxic, attributes = self._store.cuts
        for proxy in self._proxies:
            proxy.add_toxic(toxic, self.stream, **attributes)
        if seen.release is not None:
            seen.release()

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        if self._stopped is not None:
            return prove_loss(self._stopped, context, seen)
        assert self._parked is not None, "it has struck"
        applied = self._parked.applied(self.stream)

        def sink_event(event: str) -> SinkEvent | None:
            return context.sink_event_since(
                self._struck_at, event, sink=self._spec.target, query=seen.query, batch=seen.batch
            )

        error = wait_until(
            f"the {self._spec.target} sink to report that its commit failed",
            lambda: sink_event("commit-failed") or sink_event("committed"),
            deadline_s=_ERROR_S,
        )
        reported = Evidence("the sink reported", detail=one_line(error.facts.get("message", error.event)))
        if error.event == "committed":
            return missed(applied[1], "the sink reported that its commit succeeded: nothing was lost")
        if self.stream == "upstream" and self._parked.ended():
            return missed("the transaction ended although its EndTxn was to be lost", reported)
        self.heal(context)
        if not applied[0]:
            return missed(applied[1], reported)
        return proven(applied[1], reported, wait_for_commit(context, seen))

    def heal(self, context: FaultContext) -> None:
        if self._stopped is not None:
            self._stopped.close(context)
        for proxy in self._proxies:
            proxy.heal()
