"""What lost ack and lost request share: one direction of the route between a parked sink and its service is taken away.

Two ways. ``before-sink-commit``: a sink of `onceproof.sinks` is parked with everything flushed; the cut is made; the sink is released and sends its COMMIT or EndTxn. What
became of it is then asked of the service directly, and the sink must have reported an error. ``commit-lost`` and
``commit-unacknowledged``: the protocol proxy stops the very frame, of any job (`onceproof.faults.frames`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem
from onceproof.faults.evidence.item import Evidence
from onceproof.faults.frames import (
    FrameSpec,
    StoppedFrame,
    frame_placement,
    frame_problems,
    is_planned,
    prove_loss,
)
from onceproof.faults.job import Job, Try, at_checkpoint, at_commit
from onceproof.faults.placement import RESTART_S, committed, one_line, placement, point_problems
from onceproof.instruments.failpoints import SinkEvent
from onceproof.instruments.proxy.rules import Action, Cut
from onceproof.scenario.model import At, FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stack.api import Proxy, Stream
from onceproof.stores.kafka.transactions import OpenTransaction
from onceproof.stores.postgres.transactions import postgres_status

_SETTLE_S = 20.0
"""COMMIT and EndTxn take milliseconds once they have arrived, and a transaction is aborted within its time-out of 10 s."""
_ERROR_S = 45.0
"""Time for the sink to notice: the scenarios' commit time-outs are 2 s, those of a user's own sink may be longer."""


class CommitAt(At):
    """Where a commit can be cut: at the point where the sink parks before it."""

    point: Point = Field(Point.BEFORE_SINK_COMMIT, description="the place in the batch's commit protocol")


class CutCommitSpec(FaultSpec):
    target: Literal["postgres", "kafka"]
    at: CommitAt
    frame: FrameSpec | None = Field(None, description="which request, where the protocol proxy places the fault")
    cut: Cut = Field(
        "reset", description="how the client learns of it there: reset, close, or silence until its own time-out"
    )


class CutCommit:
    """Base of the two faults; ``stream`` is the direction that is lost."""

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
        """Where the protocol proxy places it."""
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
            mend = f"say at: {{point: {cls.frame_point()}}}, or leave `frame` out"
            problems.append(SpecProblem(("frame",), f"at {spec.at.point} the sink says what it commits", mend))
        if spec.cut != "reset":
            mend = f"say at: {{point: {cls.frame_point()}}}, or leave `cut` out"
            problems.append(SpecProblem(("cut",), f"at {spec.at.point} it is Toxiproxy that cuts, in one way", mend))
        if spec.target == "postgres" and scenario.stack.postgres is None:
            problems.append(SpecProblem(("target",), "this stack has no Postgres", "add `postgres: {}` to the stack"))
        return problems

    @classmethod
    def tries(cls, job: Job) -> Iterator[Try]:
        """At the frame itself; and where a sink of ours parks, at its own commit, of which it reports what it heard."""
        yield from at_commit(job, cls.frame_point())
        for query in job.queries:
            for target in query.parks:
                yield Try(Point.BEFORE_SINK_COMMIT, {"target": target}, job.of(query), words=f"{target} sink, parked")
        if not any(query.parks for query in job.queries):
            yield from at_checkpoint(job, (Point.BEFORE_SINK_COMMIT,), {})

    @classmethod
    def placement(cls, spec: CutCommitSpec, scenario: Scenario) -> Placement:
        proof = {
            "downstream": "the commit seen directly at the service while the sink reported an error",
            "upstream": "the sink reported an error and the commit was absent at the service until healed",
        }[cls.stream]
        if cls.reads_frames(spec):
            said = "the service's answer to it" if cls.stream == "downstream" else "that it was never delivered"
            if spec.target == "postgres":
                said += ", and what Postgres says became of the transaction"
            return frame_placement(spec.at.point, said, scenario)
        return placement(spec.at.point, proof, scenario)

    def matches(self, seen: Occurrence) -> bool:
        if self._stopped is not None:
            return is_planned(seen)
        return seen.instrument == "failpoint" and seen.point is self._spec.at.point and seen.sink == self._spec.target

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self._struck_at = context.timeline.now()
        if self._stopped is not None:
            self._stopped.arm(context, seen)
            return
        if self._spec.target == "postgres":
            assert context.stack.postgres is not None
            self._proxies = [context.stack.postgres.proxy]
            # The connection is closed at the first byte of that direction: at once, so the sink need not time out.
            self._proxies[0].add_toxic("limit_data", self.stream, bytes=0)
        else:
            kafka = context.stack.kafka
            self._open = OpenTransaction(kafka, seen.facts["topic"])
            self._proxies = [kafka.client_proxy(broker) for broker in kafka.brokers]
            # A closed connection would be retried inside the client over another one, and succeed: swallow instead.
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

        def told(event: str) -> SinkEvent | None:
            return context.sink_event_since(
                self._struck_at, event, sink=self._spec.target, query=seen.query, batch=seen.batch
            )

        error = wait_until(
            f"the {self._spec.target} sink to report that its commit failed",
            lambda: told("commit-failed") or told("committed"),
            deadline_s=_ERROR_S,
        )
        reported = Evidence("the sink reported", detail=one_line(error.facts.get("message", error.event)))
        if error.event == "committed":
            return Proof(False, (applied[1], "the sink saw its commit acknowledged: nothing was lost"))
        if self._open is not None and self.stream == "upstream" and (self._open.ended() or self._open.visible()):
            return Proof(False, ("the transaction ended although EndTxn should have been lost", reported))
        self.heal(context)
        if not applied[0]:
            return Proof(False, (applied[1], reported))
        wait_until(
            f"batch {seen.batch} to be committed after the fault",
            lambda: committed(context, seen.query, seen.batch),
            deadline_s=RESTART_S,
        )
        return Proof(True, (applied[1], reported, f"batch {seen.batch} was committed by Spark afterwards"))

    def heal(self, context: FaultContext) -> None:
        if self._stopped is not None:
            self._stopped.close(context)
        for proxy in self._proxies:
            proxy.heal()

    def _applied_postgres(self, context: FaultContext, seen: Occurrence) -> tuple[bool, str]:
        """Whether the commit came to what this fault wants, and the sentence that says what was seen."""
        assert context.stack.postgres is not None
        postgres, xid = context.stack.postgres, str(seen.facts["xid"])
        wanted = "committed" if self.stream == "downstream" else "aborted"

        def settled() -> str | None:
            status = postgres_status(postgres, xid)
            return None if status == "in progress" else status

        status = wait_until(f"transaction {xid} to be committed or aborted", settled, deadline_s=_SETTLE_S)
        return status == wanted, f"pg_xact_status of transaction {xid}: {status}"

    def _applied_kafka(self, context: FaultContext, seen: Occurrence) -> tuple[bool, str]:
        opened = self._open
        assert opened is not None
        who = f"transactional.id {seen.facts.get('transactional_id')}"
        if not opened.anything_open:
            return False, f"nothing was open on {seen.facts['topic']} when {who} was parked"
        if self.stream == "upstream":
            return True, f"{who}: {opened.describe()} stayed open, EndTxn never arrived"
        wait_until(f"the transaction of {who} to end", opened.ended, deadline_s=_SETTLE_S)
        return (
            opened.visible(),
            f"{who}: {opened.describe()} passed the last stable offset and are visible read_committed",
        )
