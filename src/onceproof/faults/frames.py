"""What the faults that stop frames share: which frame, in which batch, and what the service says became of it.

The rule is armed when the batch is planned, with the job stopped meanwhile; so the frame that it stops
belongs to that batch, unless the batch is found to be committed by then. A frame names no query: where there are several, it
must be told apart by what is in it.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, PositiveInt

from onceproof.base.errors import UsageError, WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem
from onceproof.faults.frame_checks import never_found
from onceproof.faults.placement import RESTART_S, committed, has_own_file_manager, instruments_of, planned
from onceproof.instruments.proxy.frames import Answer, Frame
from onceproof.instruments.proxy.rules import AMQP_KINDS, POSTGRES_KINDS, WRITES, Action, Condition, Cut, Hit, Rule
from onceproof.scenario.base import Model
from onceproof.scenario.model import Scenario
from onceproof.scenario.points import LEFT_BEHIND, Point
from onceproof.stores.postgres.transactions import postgres_status, postgres_xid

HIT_S = 60.0
"""From the plan of a batch to its COMMIT; a batch of the shipped jobs takes under two seconds."""
ANSWER_S = 20.0

Target = Literal["postgres", "kafka"]


class FrameSpec(Model):
    """Which frame. Kafka: ``kind`` is a request (EndTxn, Produce, ...); Postgres: commit or statement."""

    kind: str | None = Field(
        None, description="default: EndTxn that commits, or the COMMIT of a transaction that wrote"
    )
    nth: PositiveInt = Field(1, description="which of those that fit, counted from the plan of the batch")
    topic: str | None = Field(None, description="Kafka: a topic that the request is about")
    transactional_id: str | None = Field(None, description="Kafka: regular expression")
    committed: bool | None = Field(None, description="Kafka, EndTxn: true for a commit, false for an abort")
    sql: str | None = Field(None, description="Postgres: regular expression found in the statement")
    transaction: str | None = Field(
        None, description="Postgres: regular expression found in any statement of the transaction (a table's name)"
    )

    def tells_queries_apart(self, target: Target) -> bool:
        """Whether it says something that only one query's frames have."""
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
    """A frame that can never be: of the other service, unknown, or a service that the stack has not; or one that may be of
    another query than is meant (``query``: the one that the fault names)."""
    if target == "postgres" and scenario.stack.postgres is None:
        return [SpecProblem(("target",), "this stack has no Postgres", "add `postgres: {}` to the stack")]
    try:
        condition = frame.condition(target)
    except UsageError as wrong:
        return [SpecProblem((loc,), wrong.message, wrong.hint)]
    if (condition.kind in POSTGRES_KINDS) != (target == "postgres") or condition.kind in AMQP_KINDS:
        mend = f"for postgres: {' or '.join(POSTGRES_KINDS)}; for kafka: EndTxn, Produce, AddPartitionsToTxn, ..."
        return [SpecProblem((loc, "kind"), f"{target} has no request {condition.kind!r}", mend)]
    never = list(never_found(frame.model_dump(exclude={"kind", "nth"}), condition.kind, target, scenario, loc))
    if never:
        return never
    if several_queries(scenario, query) and not frame.tells_queries_apart(target):
        message = "a frame names no query: with several at work, one of another query could be stopped"
        apart = {
            "postgres": "transaction (a table's name) or sql",
            "kafka": "transactional_id, or kind and topic (EndTxn names no topic)",
        }
        return [SpecProblem((loc,), message, f"name what distinguishes it: {apart[target]}")]
    return []


def commit_problems(frame: FrameSpec, target: Target) -> list[SpecProblem]:
    """At before-sink-commit: a frame at which not everything of the transaction has been sent."""
    commit, kind = ("EndTxn", frame.kind or "EndTxn") if target == "kafka" else ("commit", frame.kind or "commit")
    if kind == commit and frame.committed is not False:
        return []
    loc = ("frame", "kind" if kind != commit else "committed")
    message = f"a {kind} is no commit: at {Point.BEFORE_SINK_COMMIT.value} {LEFT_BEHIND[Point.BEFORE_SINK_COMMIT]}"
    return [SpecProblem(loc, message, f"use {commit}, or point {Point.IN_TASKS.value} where the fault allows it")]


def several_queries(scenario: Scenario, query: str | None) -> bool:
    """Whether the job has, or the fault's naming of one means that it has, more than one query."""
    return query is not None or len(scenario.pipeline.queries) > 1


def frame_placement(point: Point, proof: str, scenario: Scenario) -> Placement:
    why = f"stops the frame itself: {LEFT_BEHIND[point]}; works with any job"
    if has_own_file_manager(scenario):
        # Nothing waits while the rule is armed: the frame may have passed by then, and the fault then says that it did not hit.
        why = (
            f"{why}; the job has a manager of checkpoint files of its own, so the rule is armed after the plan was seen"
        )
        return Placement("approximate", "protocol proxy, armed by the checkpoint watcher", why, proof)
    return Placement("exact", "protocol proxy", why, proof)


def is_planned(seen: Occurrence) -> bool:
    """Whether a batch's plan is just written: when rules on its frames are armed."""
    return seen.point is Point.AFTER_OFFSET_LOG and seen.instrument in instruments_of(seen.point)


class StoppedFrame:
    """One frame of one batch: armed by `arm`, found by `found`, let go by `close`."""

    def __init__(self, spec: FrameSpec, target: Target, action: Action, *, hold: bool, cut: Cut = "reset") -> None:
        self.target = target
        self.rule = Rule(spec.condition(target), action, cut, nth=spec.nth, hold=hold, name=action)
        self.xid: str | None = None
        self._was_open = False

    def arm(self, context: FaultContext, seen: Occurrence, *others: Rule) -> None:
        """With the job stopped: nothing of the batch passes before the rules stand."""
        assert context.stack.frames is not None, "the run has started the proxy: a fault of it reads frames"
        with context.job.frozen():
            for rule in (self.rule, *others):
                context.stack.frames.arm(self.target, rule)
            self._was_open = planned(context, seen.query, seen.batch) and not committed(context, seen.query, seen.batch)

    def found(self, context: FaultContext, seen: Occurrence) -> Hit | Proof:
        """The frame, stopped while its batch was open; or why there is none."""
        if not self._was_open:
            return Proof(False, (f"batch {seen.batch} was not open any more when the rule was armed",))

        def ended() -> None:
            if committed(context, seen.query, seen.batch) and not self.rule.hits:
                raise WaitTimeout(f"batch {seen.batch} was committed without a {self.rule.describe()}")

        try:
            hit = wait_until(
                f"a {self.rule.describe()}", lambda: next(iter(self.rule.hits), None), deadline_s=HIT_S, abandon=ended
            )
        except WaitTimeout as never:
            return Proof(False, (never.message, f"nearest: {self.rule.nearest()}"))
        if (self.rule.hold or self.rule.action == "late") and committed(context, seen.query, seen.batch):
            return Proof(False, (f"the {hit.frame.kind} that was stopped came after batch {seen.batch} was committed",))
        if _writes(hit.frame):
            context.tried[seen.query, seen.batch] = f"sent {which(hit.frame)}"
        pid = hit.frame.facts.get("backend_pid")
        if self.target == "postgres" and pid is not None:
            assert context.stack.postgres is not None
            self.xid = postgres_xid(context.stack.postgres, pid)
        return hit

    def close(self, context: FaultContext) -> None:
        if context.stack.frames is not None:
            context.stack.frames.disarm(self.target, self.rule)

    def became(self, context: FaultContext) -> str | None:
        """``committed`` or ``aborted``, as Postgres says; None where there is no transaction to ask for."""
        postgres, xid = context.stack.postgres, self.xid
        if postgres is None or xid is None:
            return None

        def settled() -> str | None:
            status = postgres_status(postgres, xid)
            return None if status == "in progress" else status

        return wait_until(f"transaction {xid} to be committed or aborted", settled, deadline_s=ANSWER_S)


def _writes(frame: Frame) -> bool:
    """Whether it is part of writing something: a Produce, the end of a transaction that wrote, a statement that writes."""
    if frame.kind in ("Produce", "EndTxn"):
        return True
    texts = frame.facts.get("transaction", ()) if frame.kind == "commit" else (frame.facts.get("sql") or "",)
    return any(re.search(WRITES, text, re.IGNORECASE) for text in texts)


def which(frame: Frame) -> str:
    """A frame by what a person finds it in a log with."""
    facts = frame.facts
    if "sql" in facts:
        return f"{facts['sql'].strip()[:80]!r} of backend {facts['backend_pid']}"
    words = [frame.kind]
    if facts.get("committed") is not None:
        words.append("(commit)" if facts["committed"] else "(abort)")
    if facts.get("transactional_id") is not None:
        words.append(f"of transactional.id {facts['transactional_id']}")
    if facts.get("producer_epoch") is not None:
        words.append(f"(producer {facts['producer_id']}, epoch {facts['producer_epoch']})")
    if facts.get("topics"):
        words.append(f"on {', '.join(facts['topics'])}")
    return " ".join([*words, f"with correlation id {facts['correlation_id']}"])


def wait_for_commit(context: FaultContext, seen: Occurrence) -> str:
    wait_until(
        f"batch {seen.batch} to be committed after the fault",
        lambda: committed(context, seen.query, seen.batch),
        deadline_s=RESTART_S,
        explain=lambda: f"driver start {context.job.current_start}",
    )
    return f"batch {seen.batch} was committed by Spark afterwards"


def not_applied(frame: Frame, answer: Answer, xid: str | None) -> str | None:
    """Why the answer that was lost is not that to a request that was applied; None where it surely is."""
    facts = answer.facts
    if "tags" not in facts:  # Kafka's
        codes = facts.get("error_codes")
        if not codes:
            said = facts.get("undecodable", "it holds no error code")
            return f"whether it was applied is not known, since its answer could not be read: {said}"
        if any(codes):
            return "the service refused it: nothing was applied whose answer could be lost"
        return None
    if facts.get("sqlstate"):
        return "the service refused it: nothing was applied whose answer could be lost"
    if frame.kind == "commit" and "COMMIT" not in facts["tags"]:
        return "the service did not commit (a failed transaction is rolled back by its COMMIT): nothing was applied"
    if xid is None:
        return (
            "the transaction had no id when its frame was stopped: it had written nothing by then, "
            "and Postgres cannot be asked what became of it"
        )
    return None


def prove_loss(stopped: StoppedFrame, context: FaultContext, seen: Occurrence) -> Proof:
    """Both losses: the frame is held, its state looked at, then it (or its answer) is lost, and the service asked."""
    found = stopped.found(context, seen)
    if isinstance(found, Proof):
        return found
    words = [f"{which(found.frame)} was stopped by {found.proxy} while batch {seen.batch} was open"]
    stopped.rule.release()
    lost_answer = stopped.rule.action == "drop-answer"
    if found.undeliverable is not None:
        return Proof(False, (*words, found.undeliverable))
    if lost_answer:
        answer = stopped.rule.wait_for_answer(found, ANSWER_S)
        told = {name: value for name, value in answer.facts.items() if value is not None}
        how = (
            "and its client was left waiting"
            if stopped.rule.cut == "silence"
            else "and the answer was lost with the connection"
        )
        words.append(f"it was delivered; the service answered {told}, {how}")
        why_not = not_applied(found.frame, answer, stopped.xid)
        if why_not is not None:
            return Proof(False, (*words, why_not))
    else:
        wait_until("the request to be lost", lambda: found.cut_at or found.undeliverable, deadline_s=ANSWER_S)
        if found.undeliverable is not None:
            return Proof(False, (*words, found.undeliverable))
        end = {"reset": "and its client's connection reset", "close": "and its client's connection closed"}
        words.append(f"it was never delivered, {end.get(stopped.rule.cut, 'and its client was left waiting')}")
        if stopped.target == "postgres" and stopped.xid is None:
            if found.frame.kind == "commit":
                return Proof(False, (*words, "the transaction had no id: it had written nothing, so nothing was lost"))
            words.append("its transaction had no id yet, so that Postgres could not be asked")
        if stopped.target == "kafka":
            words.append(
                "Kafka itself was not asked: what is proven is that this request did not reach it; the client may have sent "
                "it again by itself, over another connection, before the job noticed anything"
            )
    became, wanted = stopped.became(context), "committed" if lost_answer else "aborted"
    if became is not None:
        words.append(f"pg_xact_status of transaction {stopped.xid}: {became}")
        if became != wanted:
            return Proof(False, tuple(words))
    words.append(wait_for_commit(context, seen))
    since = stopped.rule.fitting - stopped.rule.nth
    if since > 0:
        words.append(f"{since} more like it were sent since: the client came back")
    return Proof(True, tuple(words))
