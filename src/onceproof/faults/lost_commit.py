"""Shared by lost ack and lost request: both cut one direction of the connection over which a sink commits.

There are two ways. At ``before-sink-commit`` a sink of `onceproof.sinks` is parked with everything flushed; the connection is
cut; the sink is released and sends its COMMIT or EndTxn. The harness then asks the service directly for the outcome, and the
sink must have reported an error. At ``commit-lost`` and ``commit-unacknowledged`` the protocol proxy stops the frame itself, in
any job (`onceproof.faults.frames`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, missed, proven
from onceproof.faults.evidence.item import Evidence
from onceproof.faults.frames import (
    FrameSpec,
    StoppedFrame,
    at_plan,
    frame_problems,
    placement_at_frame,
    prove_loss,
    wait_for_commit,
    wait_for_outcome,
)
from onceproof.faults.job import Job, Try, at_checkpoint, at_commit
from onceproof.faults.placement import one_line, placement_at, point_problems
from onceproof.instruments.failpoints import SinkEvent
from onceproof.instruments.proxy.rules import Action, Cut
from onceproof.scenario.model import At, FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stack.api import Proxy, Stream
from onceproof.stores.kafka.transactions import OpenTransaction

_SETTLE_S = 20.0
"""EndTxn takes milliseconds once it has arrived, and Kafka aborts a transaction after its time-out of 10 s."""
_ERROR_S = 45.0
"""Limit for the sink to notice: the commit time-outs of the scenarios are 2 s; a user's own sink may have longer ones."""


class CommitAt(At):
    """The position of the fault; the default point is the one where a sink parks before its commit."""

    point: Point = Field(Point.BEFORE_SINK_COMMIT, description="the place in the batch's commit protocol")


class CutCommitSpec(FaultSpec):
    target: Literal["postgres", "kafka"]
    at: CommitAt
    frame: FrameSpec | None = Field(None, description="which request; only where the protocol proxy places the fault")
    cut: Cut = Field("reset", description="what the client sees there: reset, close, or silence until its own time-out")


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
        self._open: OpenTransaction | None = None

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
            return problems + frame_problems(spec.frame or FrameSpec(), spec.target, scenario, query=spec.at.query)
        if spec.frame is not None:
            message = f"`frame` has no effect at {spec.at.point}, where a parked sink is cut off at its own commit"
            hint = f"use at: {{point: {cls.frame_point()}}}, or remove `frame`"
            problems.append(SpecProblem(("frame",), message, hint))
        if spec.cut != "reset":
            message = f"`cut` has no effect at {spec.at.point}, where Toxiproxy cuts the connection"
            hint = f"use at: {{point: {cls.frame_point()}}}, or remove `cut`"
            problems.append(SpecProblem(("cut",), message, hint))
        if spec.target == "postgres" and scenario.stack.postgres is None:
            problems.append(SpecProblem(("target",), "this stack has no Postgres", "add `postgres: {}` to the stack"))
        return problems

    @classmethod
    def tries(cls, job: Job) -> Iterator[Try]:
        """One try at the frame of each commit, and one at the commit of each sink that can park and then reports its error."""
        yield from at_commit(job, cls.frame_point())
        for query in job.queries:
            for target in query.parks:
                yield Try(
                    Point.BEFORE_SINK_COMMIT,
                    {"target": target},
                    job.at_query(query.name),
                    words=f"{target} sink, parked",
                )
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
            if spec.target == "postgres":
                proof += ", and the transaction's status in Postgres"
            return placement_at_frame(spec.at.point, proof, scenario)
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
        if self._spec.target == "postgres":
            assert context.stack.postgres is not None
            self._proxies = [context.stack.postgres.proxy]
            # Toxiproxy closes the connection at the first byte of that direction, so the sink need not time out.
            self._proxies[0].add_toxic("limit_data", self.stream, bytes=0)
        else:
            kafka = context.stack.kafka
            self._open = OpenTransaction(kafka, seen.facts["topic"])
            self._proxies = [kafka.client_proxy(broker) for broker in kafka.brokers]
            # After a closed connection the client would retry over another one, and succeed: so drop the bytes instead.
            for proxy in self._proxies:
                proxy.add_toxic("timeout", self.stream, timeout=0)
        if seen.release is not None:
            seen.release()

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        if self._stopped is not None:
            return prove_loss(self._stopped, context, seen)
        applied = (
            self._applied_postgres(context, seen)
            if self._spec.target == "postgres"
            else self._applied_kafka(context, seen)
        )

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
        if self._open is not None and self.stream == "upstream" and (self._open.ended() or self._open.visible()):
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

    def _applied_postgres(self, context: FaultContext, seen: Occurrence) -> tuple[bool, str]:
        """Whether the transaction's outcome is the one that this fault intends, and the evidence for it."""
        assert context.stack.postgres is not None
        xid = str(seen.facts["xid"])
        wanted = "committed" if self.stream == "downstream" else "aborted"
        status = wait_for_outcome(context.stack.postgres, xid)
        return status == wanted, f"pg_xact_status of transaction {xid}: {status}"

    def _applied_kafka(self, context: FaultContext, seen: Occurrence) -> tuple[bool, str]:
        opened = self._open
        assert opened is not None
        who = f"transactional.id {seen.facts.get('transactional_id')}"
        if not opened.has_open_records:
            return False, f"no transaction was open on topic {seen.facts['topic']} when {who} was parked"
        if self.stream == "upstream":
            return True, f"{who}: the transaction on {opened.describe()} stayed open, because its EndTxn never arrived"
        wait_until(f"the transaction of {who} to end", opened.ended, deadline_s=_SETTLE_S)
        visible = opened.visible()
        return (
            visible,
            f"{who}: the last stable offset passed {opened.describe()}, and read_committed readers "
            f"{'see' if visible else 'do not see'} the records",
        )
