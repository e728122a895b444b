"""Shared by the faults that stop a frame: which frame to stop, in which batch, and what the service then did with it.

The rule is armed when the batch is planned, with the job stopped meanwhile. The frame that it stops therefore belongs to that
batch, unless the batch is already committed by then. A frame does not name its query: in a job with several, the rule must
identify the query by the frame's content.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, PositiveInt

from onceproof.base.errors import UsageError, WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.base.words import times
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, missed, proven
from onceproof.faults.frame_checks import unmatchable
from onceproof.faults.placement import RESTART_S, committed, has_own_file_manager, instruments_of, is_open
from onceproof.instruments.proxy.frames import Answer, Frame
from onceproof.instruments.proxy.rules import AMQP_KINDS, POSTGRES_KINDS, WRITES, Action, Condition, Cut, Hit, Rule
from onceproof.scenario.base import Model
from onceproof.scenario.model import Scenario
from onceproof.scenario.points import LEFT_BEHIND, Point
from onceproof.stack.api import Postgres
from onceproof.stores.postgres.transactions import postgres_status, postgres_xid

HIT_S = 60.0
"""Limit for the time from a batch's plan to its COMMIT; a batch of the shipped jobs takes under two seconds."""
ANSWER_S = 20.0

Target = Literal["postgres", "kafka"]


class FrameSpec(Model):
    """Which frame to stop. Kafka: ``kind`` is a request (EndTxn, Produce, ...); Postgres: commit or statement."""

    kind: str | None = Field(
        None, description="default: EndTxn that commits, or the COMMIT of a transaction that wrote"
    )
    nth: PositiveInt = Field(1, description="which of the matching frames, counted from the plan of the batch")
    topic: str | None = Field(None, description="Kafka: a topic that the request names")
    transactional_id: str | None = Field(None, description="Kafka: regular expression")
    committed: bool | None = Field(None, description="Kafka, EndTxn: true for a commit, false for an abort")
    sql: str | None = Field(None, description="Postgres: regular expression found in the statement")
    transaction: str | None = Field(
        None, description="Postgres: regular expression found in any statement of the transaction (a table's name)"
    )

    def identifies_query(self, target: Target) -> bool:
        """Whether it names something that only one query's frames contain."""
        if target == "postgres":
            return self.transaction is not None or self.sql is not None
        named = self.kind is not None and self.kind != "EndTxn"  # EndTxn names no topic
        return self.transactional_id is not None or (named and self.topic is not None)

    def condition(self, target: Target) -> Condition:
        kind = self.kind or ("EndTxn" if target == "kafka" else "commit")
        plain_commit = kind == "EndTxn" and self.kind is None and self.committed is None
        return Condition(
            kind,
            topic=self.topic,
            transactional_id=self.transactional_id,
            committed=True if plain_commit else self.committed,
            sql=self.sql,
            transaction=self.transaction or (WRITES if kind == "commit" else None),
        )


def frame_problems(
    frame: FrameSpec, target: Target, scenario: Scenario, loc: str = "frame", *, query: str | None = None
) -> list[SpecProblem]:
    """Why this frame can never be stopped: its kind is unknown or belongs to the other service, or the stack lacks the service.
    Or why it could belong to another query than the fault's (``query``: the one that the fault names)."""
    if target == "postgres" and scenario.stack.postgres is None:
        return [SpecProblem(("target",), "this stack has no Postgres", "add `postgres: {}` to the stack")]
    try:
        condition = frame.condition(target)
    except UsageError as wrong:
        return [SpecProblem((loc,), wrong.message, wrong.hint)]
    if (condition.kind in POSTGRES_KINDS) != (target == "postgres") or condition.kind in AMQP_KINDS:
        hint = f"for postgres: {' or '.join(POSTGRES_KINDS)}; for kafka: EndTxn, Produce, AddPartitionsToTxn, ..."
        return [SpecProblem((loc, "kind"), f"{target} has no request {condition.kind!r}", hint)]
    never = list(unmatchable(frame.model_dump(exclude={"kind", "nth"}), condition.kind, target, scenario, loc))
    if never:
        return never
    if several_queries(scenario, query) and not frame.identifies_query(target):
        message = "a frame does not name its query: in a job with several, a frame of another query could be stopped"
        distinctions = {
            "postgres": "transaction (a table's name) or sql",
            "kafka": "transactional_id, or kind and topic (EndTxn names no topic)",
        }
        return [SpecProblem((loc,), message, f"name what distinguishes it: {distinctions[target]}")]
    return []


def commit_problems(frame: FrameSpec, target: Target) -> list[SpecProblem]:
    """A problem for a fault at before-sink-commit if the frame is not a commit: the transaction is then not complete."""
    commit, kind = ("EndTxn", frame.kind or "EndTxn") if target == "kafka" else ("commit", frame.kind or "commit")
    if kind == commit and frame.committed is not False:
        return []
    loc = ("frame", "kind" if kind != commit else "committed")
    message = (
        f"this {kind} is not a commit: at {Point.BEFORE_SINK_COMMIT.value} {LEFT_BEHIND[Point.BEFORE_SINK_COMMIT]}"
    )
    return [SpecProblem(loc, message, f"use {commit}, or point {Point.IN_TASKS.value} where the fault allows it")]


def several_queries(scenario: Scenario, query: str | None) -> bool:
    """Whether the job has more than one query, as the scenario declares or as the fault implies by naming one."""
    return query is not None or len(scenario.pipeline.queries) > 1


def placement_at_frame(point: Point, proof: str, scenario: Scenario) -> Placement:
    """How exactly a fault can stop a frame of the batch in this scenario."""
    why = f"stops the frame itself: {LEFT_BEHIND[point]}; works with any job"
    if has_own_file_manager(scenario):
        # The driver does not wait while the rule is armed: the frame may already have passed, which is reported as a miss.
        why = (
            f"{why}; the job sets its own checkpoint file manager, so the rule is armed only after the plan was written"
        )
        return Placement("approximate", "protocol proxy, armed by the checkpoint watcher", why, proof)
    return Placement("exact", "protocol proxy", why, proof)


def at_plan(seen: Occurrence) -> bool:
    """Whether a batch's plan was just written, which is when rules on its frames are armed."""
    return seen.point is Point.AFTER_OFFSET_LOG and seen.instrument in instruments_of(seen.point)


class StoppedFrame:
    """One frame of one batch: `arm` arms the rule, `wait_for_frame` returns the stopped frame, `close` disarms the rule."""

    def __init__(self, spec: FrameSpec, target: Target, action: Action, *, hold: bool, cut: Cut = "reset") -> None:
        self.target = target
        self.rule = Rule(spec.condition(target), action, cut, nth=spec.nth, hold=hold, name=action)
        self.xid: str | None = None
        self._was_open = False

    def arm(self, context: FaultContext, seen: Occurrence, *others: Rule) -> None:
        """Arm the rules while the job is stopped, so that no frame of the batch passes before."""
        assert context.stack.frames is not None, "the run starts the protocol proxy for a fault that reads frames"
        with context.job.frozen():
            for rule in (self.rule, *others):
                context.stack.frames.arm(self.target, rule)
            self._was_open = is_open(context, seen.query, seen.batch)

    def wait_for_frame(self, context: FaultContext, seen: Occurrence) -> Hit | Proof:
        """The frame, stopped while its batch was open; or a miss that says why there is none."""
        if not self._was_open:
            return missed(f"batch {seen.batch} was no longer open when the rule was armed")

        def raise_if_committed() -> None:
            if committed(context, seen.query, seen.batch) and not self.rule.hits:
                raise WaitTimeout(f"batch {seen.batch} was committed without a {self.rule.describe()}")

        try:
            hit = wait_until(
                f"a {self.rule.describe()}",
                lambda: next(iter(self.rule.hits), None),
                deadline_s=HIT_S,
                abandon=raise_if_committed,
            )
        except WaitTimeout as never:
            return missed(never.message, f"nearest: {self.rule.nearest()}")
        if (self.rule.hold or self.rule.action == "late") and committed(context, seen.query, seen.batch):
            return missed(f"the stopped {hit.frame.kind} was sent only after batch {seen.batch} was committed")
        if _writes(hit.frame):
            context.attempted_writes[seen.query, seen.batch] = f"sent {describe_frame(hit.frame)}"
        pid = hit.frame.facts.get("backend_pid")
        if self.target == "postgres" and pid is not None:
            assert context.stack.postgres is not None
            self.xid = postgres_xid(context.stack.postgres, pid)
        return hit

    def close(self, context: FaultContext) -> None:
        if context.stack.frames is not None:
            context.stack.frames.disarm(self.target, self.rule)

    def wait_for_outcome(self, context: FaultContext) -> str | None:
        """`wait_for_outcome` of the frame's transaction; None if its id is not known."""
        if context.stack.postgres is None or self.xid is None:
            return None
        return wait_for_outcome(context.stack.postgres, self.xid)


def wait_for_outcome(postgres: Postgres, xid: str) -> str:
    """Wait until a transaction has ended; returns ``committed`` or ``aborted``, as Postgres reports."""

    def outcome() -> str | None:
        status = postgres_status(postgres, xid)
        return None if status == "in progress" else status

    return wait_until(f"transaction {xid} to be committed or aborted", outcome, deadline_s=ANSWER_S)


def _writes(frame: Frame) -> bool:
    """Whether the frame belongs to a write: a Produce, the end of a transaction that wrote, or a statement that writes."""
    if frame.kind in ("Produce", "EndTxn"):
        return True
    texts = frame.facts.get("transaction", ()) if frame.kind == "commit" else (frame.facts.get("sql") or "",)
    return any(re.search(WRITES, text, re.IGNORECASE) for text in texts)


def describe_frame(frame: Frame) -> str:
    """A frame, with the details by which it can be found in a log."""
    facts = frame.facts
    if "sql" in facts:
        return f"{facts['sql'].strip()[:80]!r} of backend {facts['backend_pid']}"
    parts = [frame.kind]
    if facts.get("committed") is not None:
        parts.append("(commit)" if facts["committed"] else "(abort)")
    if facts.get("transactional_id") is not None:
        parts.append(f"of transactional.id {facts['transactional_id']}")
    if facts.get("producer_epoch") is not None:
        parts.append(f"(producer {facts['producer_id']}, epoch {facts['producer_epoch']})")
    if facts.get("topics"):
        parts.append(f"on {', '.join(facts['topics'])}")
    return " ".join([*parts, f"with correlation id {facts['correlation_id']}"])


def wait_for_restart(context: FaultContext, start: int) -> str:
    """Wait until the supervisor has started a driver after ``start``; returns that as evidence. Raises `WaitTimeout`."""
    wait_until("the driver to be started again", lambda: context.job.restarted_since(start), deadline_s=RESTART_S)
    return "the driver was started again"


def wait_for_commit(context: FaultContext, seen: Occurrence) -> str:
    """Wait until Spark has committed the batch; returns that as evidence. Raises `WaitTimeout`."""
    wait_until(
        f"batch {seen.batch} to be committed after the fault",
        lambda: committed(context, seen.query, seen.batch),
        deadline_s=RESTART_S,
        explain=lambda: f"driver start {context.job.current_start}",
    )
    return f"batch {seen.batch} was committed by Spark afterwards"


def why_not_applied(frame: Frame, answer: Answer, xid: str | None) -> str | None:
    """Why the lost answer does not acknowledge an applied request; None if it certainly does."""
    facts = answer.facts
    refused = "the service refused the request: nothing was applied, so no acknowledgement was lost"
    if "tags" not in facts:  # Kafka's
        codes = facts.get("error_codes")
        if not codes:
            reason = facts.get("undecodable", "it holds no error code")
            return f"whether the request was applied is not known, because the answer could not be read: {reason}"
        return refused if any(codes) else None
    if facts.get("sqlstate"):
        return refused
    if frame.kind == "commit" and "COMMIT" not in facts["tags"]:
        return "Postgres did not commit (it rolls back a failed transaction at its COMMIT): nothing was applied"
    if xid is None:
        return (
            "the transaction had no id when its frame was stopped: it had written nothing by then, "
            "and Postgres cannot be asked for its outcome"
        )
    return None


def prove_loss(stopped: StoppedFrame, context: FaultContext, seen: Occurrence) -> Proof:
    """Prove a lost request or a lost answer: the frame is held, then it or its answer is dropped, and the service is asked."""
    found = stopped.wait_for_frame(context, seen)
    if isinstance(found, Proof):
        return found
    evidence = [f"{describe_frame(found.frame)} was stopped by {found.proxy} while batch {seen.batch} was open"]
    stopped.rule.release()
    lost_answer = stopped.rule.action == "drop-answer"
    if found.undeliverable is not None:
        return missed(*evidence, found.undeliverable)
    if lost_answer:
        answer = stopped.rule.wait_for_answer(found, ANSWER_S)
        facts = {name: value for name, value in answer.facts.items() if value is not None}
        how = "its client was left waiting" if stopped.rule.cut == "silence" else "its client's connection was cut"
        evidence.append(f"it was delivered; the service answered {facts}; the answer was dropped, and {how}")
        why_not = why_not_applied(found.frame, answer, stopped.xid)
        if why_not is not None:
            return missed(*evidence, why_not)
    else:
        wait_until("the request to be lost", lambda: found.cut_at or found.undeliverable, deadline_s=ANSWER_S)
        if found.undeliverable is not None:
            return missed(*evidence, found.undeliverable)
        end = {"reset": "its client's connection was reset", "close": "its client's connection was closed"}
        evidence.append(f"it was never delivered; {end.get(stopped.rule.cut, 'its client was left waiting')}")
        if stopped.target == "postgres" and stopped.xid is None:
            if found.frame.kind == "commit":
                return missed(*evidence, "the transaction had no id: it had written nothing, so nothing was lost")
            evidence.append("its transaction had no id yet, so Postgres could not be asked for its outcome")
        if stopped.target == "kafka":
            evidence.append(
                "Kafka was not asked: this request did not reach it, but the client may have sent it again over another "
                "connection before the job noticed"
            )
    became, wanted = stopped.wait_for_outcome(context), "committed" if lost_answer else "aborted"
    if became is not None:
        evidence.append(f"pg_xact_status of transaction {stopped.xid}: {became}")
        if became != wanted:
            return missed(*evidence)
    evidence.append(wait_for_commit(context, seen))
    later = stopped.rule.fitting - stopped.rule.nth
    if later > 0:
        evidence.append(
            f"{times(later, 'matching request')} came later: the client, or a restarted one, connected again"
        )
    return proven(*evidence)
