"""Crash of the Postgres server, or of one backend, while a transaction has written everything and its COMMIT is on its way.

The COMMIT is stopped by the protocol proxy in the batch that is meant, so that it works with any job. A server that crashes
forgets what was not committed (write-ahead log; Postgres' manual, chapter 28), and an administrator's pg_terminate_backend
ends one session (57P01) and nothing else.
"""

from __future__ import annotations

import threading
from typing import LiteralString

from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem
from onceproof.faults.frames import (
    ANSWER_S,
    FrameSpec,
    StoppedFrame,
    commit_problems,
    frame_placement,
    frame_problems,
    is_planned,
    wait_for_commit,
    which,
)
from onceproof.faults.placement import point_problems
from onceproof.faults.refusals import administrator, postgres_of
from onceproof.instruments.proxy.frames import Reply
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stores.postgres.transactions import postgres_status

#: Targets of `onceproof.chaos.crash.kind` that are handed over to here.
POSTGRES_TARGETS = ("postgres", "postgres-backend")
_ENDED_BY_ADMINISTRATOR = "57P01"


class PostgresCrash:
    """The server's processes die at once (SIGKILL), or one backend is terminated, with a transaction about to commit."""

    def __init__(self, spec: FaultSpec, frame: FrameSpec | None) -> None:
        self._spec = spec
        self._commit = StoppedFrame(frame or FrameSpec(), "postgres", "park", hold=True)
        self._heard: list[Reply] = []
        self._struck = False
        self._over = False
        self._lock = threading.Lock()

    @classmethod
    def problems(cls, spec: FaultSpec, frame: FrameSpec | None, scenario: Scenario) -> list[SpecProblem]:
        wrong = point_problems(spec, (Point.BEFORE_SINK_COMMIT,))
        named = frame_problems(frame or FrameSpec(), "postgres", scenario, query=spec.at.query)
        return wrong + (named or commit_problems(frame or FrameSpec(), "postgres"))

    @classmethod
    def placement(cls, spec: FaultSpec, scenario: Scenario) -> Placement:
        gone = "the server was started anew" if spec.target == "postgres" else "the job's session was ended (57P01)"
        proof = f"the transaction is gone for good, {gone}, and batch {spec.at.batch} was committed afterwards"
        return frame_placement(spec.at.point, proof, scenario)

    def matches(self, seen: Occurrence) -> bool:
        return is_planned(seen)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        assert context.stack.frames is not None, "the run has started the proxy: this fault reads frames"
        self._commit.arm(context, seen)
        context.stack.frames.listen("postgres", self._heard)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        found = self._commit.found(context, seen)
        if isinstance(found, Proof):
            return found
        words = [f"{which(found.frame)} was stopped by {found.proxy} while batch {seen.batch} was open"]
        if self._commit.xid is None:
            return Proof(False, (*words, "its transaction had no id: it had written nothing, so nothing was in danger"))
        pid = int(found.frame.facts["backend_pid"])
        if self._spec.target == "postgres":
            aborted, said = self._crash(context, self._commit.xid)
            words += said
        else:
            words.append(self._terminate(context, pid))
            became = self._commit.became(context)
            words.append(f"pg_xact_status of transaction {self._commit.xid}: {became}")
            aborted = became == "aborted"
        self.heal(context)
        if not aborted:
            return Proof(False, tuple(words))
        words.append(wait_for_commit(context, seen))
        return Proof(True, tuple(words))

    def heal(self, context: FaultContext) -> None:
        with self._lock:  # who proves may come to the kill only now, and nobody would heal that
            self._over = True
        if self._struck:
            postgres_of(context).restart()
            postgres_of(context).proxy.heal()
            self._struck = False  # once and for all: after this the next fault may cut it off
        self._commit.close(context)
        if context.stack.frames is not None:
            context.stack.frames.unlisten("postgres", self._heard)

    def _crash(self, context: FaultContext, xid: str) -> tuple[bool, list[str]]:
        """Whether the transaction is gone for good, and what was seen. Nobody is let in until both are known."""
        postgres = postgres_of(context)
        before = _ask(context, _STARTED)
        with self._lock:
            if self._over:
                return False, ["the run ended before Postgres was to be killed"]
            self._struck = True
            postgres.kill()
        postgres.proxy.turn_away()
        gone = not postgres.is_running()
        postgres.restart()
        after = _ask(context, _STARTED)
        words = [
            f"the Postgres server was killed (SIGKILL, every backend too) and recovered: started {before}, now {after}"
        ]
        # What was never flushed is not in the log either: the ids of such transactions are given out a second time, so that
        # later nobody could tell this one from its replay.
        following = _ask(context, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
        if int(following) <= int(xid):
            words.append(f"of transaction {xid} nothing is left: the next one to begin has the id {following}")
            aborted = True
        else:
            status = postgres_status(postgres, xid)
            words.append(f"pg_xact_status of transaction {xid}: {status}")
            aborted = status == "aborted"
        return gone and after != before and aborted, words

    def _terminate(self, context: FaultContext, pid: int) -> str:
        with administrator(postgres_of(context)) as connection:
            row = connection.execute("SELECT pg_terminate_backend(%s, %s)", (pid, int(ANSWER_S * 1000))).fetchone()
        if row is None or row[0] is not True:
            raise RuntimeError(f"backend {pid} was not there any more, or did not end")
        told = wait_until(
            f"the job to get the error that backend {pid} was ended",
            lambda: next((reply for reply in list(self._heard) if reply.code == _ENDED_BY_ADMINISTRATOR), None),
            deadline_s=ANSWER_S,
        )
        return f"backend {pid} was terminated; the job got the error: {told.code} {told.message}"


_STARTED = "SELECT pg_postmaster_start_time()::text"


def _ask(context: FaultContext, question: LiteralString) -> str:
    with administrator(postgres_of(context)) as connection:
        row = connection.execute(question).fetchone()
    assert row is not None
    return str(row[0])
