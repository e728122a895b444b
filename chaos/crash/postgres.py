"""Crash of the Postgres server, or of one backend, when a transaction has written everything and its COMMIT is on its way.

The protocol proxy stops the COMMIT in the chosen batch, which works with any job. A server that crashes loses what was not
committed (write-ahead log; Postgres' manual, chapter 28). An administrator's pg_terminate_backend ends only one session
(57P01).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import ClassVar, Literal, LiteralString

from pydantic import Field

from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed, proven
from onceproof.faults.frames import (
    ANSWER_S,
    AtItsFrame,
    StoppedFrame,
    commit_problems,
    frame_problems,
    placement_at_frame,
    wait_for_commit,
)
from onceproof.faults.job import Job, Try
from onceproof.faults.placement import point_problems
from onceproof.faults.refusals import administrator, postgres_of
from onceproof.instruments.proxy.frames import Reply
from onceproof.instruments.proxy.rules import now
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stores.frames import FrameSpec
from onceproof.stores.postgres.transactions import postgres_status

_ENDED_BY_ADMINISTRATOR = "57P01"


class PostgresCrashSpec(FaultSpec):
    fault: Literal["crash"]
    target: Literal["postgres", "postgres-backend"]
    frame: FrameSpec | None = Field(None, description="the COMMIT at which it is struck")


@faults.register("crash", "postgres")
@faults.register("crash", "postgres-backend")
class PostgresCrash(AtItsFrame):
    """SIGKILL of all the server's processes, or termination of one backend, while a transaction is about to commit."""

    Spec: ClassVar[type[FaultSpec]] = PostgresCrashSpec
    about: ClassVar[str] = "SIGKILL of Postgres, or the end of one of its sessions, at a COMMIT"

    def __init__(self, spec: PostgresCrashSpec) -> None:
        self._spec = spec
        self._commit = StoppedFrame(spec.frame or FrameSpec(), "postgres", "park", hold=True)
        self._heard: list[Reply] = []
        self._struck = False
        self._struck_at = 0.0
        """Seconds of the monotonic clock."""
        self._over = False
        self._lock = threading.Lock()

    @classmethod
    def needs_control(cls, spec: PostgresCrashSpec) -> str | None:
        return "Postgres" if spec.target == "postgres" else None

    @classmethod
    def problems(cls, spec: PostgresCrashSpec, scenario: Scenario) -> list[SpecProblem]:
        frame = spec.frame or FrameSpec()
        wrong = point_problems(spec, (Point.BEFORE_SINK_COMMIT,))
        named = frame_problems(frame, "postgres", scenario, query=spec.at.query)
        return wrong + (named or commit_problems(frame, "postgres"))

    @classmethod
    def tries(cls, job: Job) -> Iterator[Try]:
        for sink in job.commits:
            if sink.target == "postgres":
                for target in ("postgres", "postgres-backend"):
                    settings = {"target": target, "frame": dict(sink.frame)}
                    yield Try(Point.BEFORE_SINK_COMMIT, settings, job.at_query(sink.query), words=sink.words)

    @classmethod
    def placement(cls, spec: PostgresCrashSpec, scenario: Scenario) -> Placement:
        end = "the server restarted" if spec.target == "postgres" else "the job's session was ended (57P01)"
        proof = f"the transaction is gone, {end}, and batch {spec.at.batch} was committed afterwards"
        return placement_at_frame(spec.at.point, proof, scenario)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self._commit.arm(context, seen)
        context.board("postgres").listen(self._heard)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        found = self._commit.wait_for_frame(context, seen)
        if isinstance(found, Proof):
            return found
        evidence = [self._commit.describe_stop(found, seen)]
        if self._commit.xid is None:
            return missed(*evidence, "its transaction had no id: it had written nothing, so nothing was in danger")
        pid = int(found.frame.facts["backend_pid"])
        if self._spec.target == "postgres":
            aborted, sentences = self._crash(context, self._commit.xid)
            evidence += sentences
        else:
            evidence.append(self._terminate(context, pid))
            outcome = self._commit.wait_for_outcome(context)
            evidence.append(f"pg_xact_status of transaction {self._commit.xid}: {outcome}")
            aborted = outcome == "aborted"
        self.heal(context)
        if (why := found.lost_before(self._struck_at)) is not None:
            evidence.append(why)
            aborted = False
        if not aborted:
            return missed(*evidence)
        evidence.append(wait_for_commit(context, seen))
        return proven(*evidence)

    def heal(self, context: FaultContext) -> None:
        with self._lock:  # `prove` must not kill the server after this: nothing would restart it
            self._over = True
        if self._struck:
            postgres_of(context).restart()
            postgres_of(context).proxy.heal()
            self._struck = False  # heal only once: from here on the next fault may cut Postgres off
        self._commit.close(context)
        context.board("postgres").unlisten(self._heard)

    def _crash(self, context: FaultContext, xid: str) -> tuple[bool, list[str]]:
        """Kill and restart the server. Whether the transaction is gone, and the evidence; no client can connect before
        that is known."""
        postgres = postgres_of(context)
        before = _ask(context, _STARTED)
        with self._lock:
            if self._over:
                return False, ["the run ended before Postgres could be killed"]
            self._struck, self._struck_at = True, now()
            postgres.kill()
        postgres.proxy.reject_clients()
        gone = not postgres.is_running()
        postgres.restart()
        after = _ask(context, _STARTED)
        evidence = [
            f"the Postgres server was killed (SIGKILL, every backend too) and recovered: started {before}, now {after}"
        ]
        # A transaction that was never flushed is not in the log either. Postgres assigns its id a second time, so later this
        # transaction could not be distinguished from its replay.
        following = _ask(context, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
        if int(following) <= int(xid):
            evidence.append(f"transaction {xid} left no trace: the next transaction gets the id {following}")
            aborted = True
        else:
            status = postgres_status(postgres, xid)
            evidence.append(f"pg_xact_status of transaction {xid}: {status}")
            aborted = status == "aborted"
        return gone and after != before and aborted, evidence

    def _terminate(self, context: FaultContext, pid: int) -> str:
        with administrator(postgres_of(context)) as connection:
            self._struck_at = now()
            row = connection.execute("SELECT pg_terminate_backend(%s, %s)", (pid, int(ANSWER_S * 1000))).fetchone()
        if row is None or row[0] is not True:
            raise RuntimeError(f"backend {pid} no longer existed, or did not end within {ANSWER_S:.0f} s")
        error = wait_until(
            f"the job to get the error that backend {pid} was ended",
            lambda: next((reply for reply in list(self._heard) if reply.code == _ENDED_BY_ADMINISTRATOR), None),
            deadline_s=ANSWER_S,
        )
        return f"backend {pid} was terminated; the job got the error: {error.code} {error.message}"


_STARTED = "SELECT pg_postmaster_start_time()::text"


def _ask(context: FaultContext, question: LiteralString) -> str:
    with administrator(postgres_of(context)) as connection:
        row = connection.execute(question).fetchone()
    assert row is not None
    return str(row[0])
