"""The fault `reject`: the sink's service refuses a write. The service's own answer proves it, even if the job hides the error.

A job that swallows the error stays alive and loses data. Killing a process would not reveal that.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal
from weakref import WeakKeyDictionary

from pydantic import Field

from onceproof.base.errors import WaitTimeout
from onceproof.base.registry import suggest
from onceproof.base.waiting import wait_until
from onceproof.base.words import times
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed, proven
from onceproof.faults.evidence.refused_query import RefusalAttribution, attribute_refusals, uses_postgres
from onceproof.faults.job import Job, Try, untried_outputs
from onceproof.faults.placement import RESTART_S, AtItsPoint, committed, is_open, one_line, placement_at, point_problems
from onceproof.faults.refusals import (
    NEEDS_TIMEOUT,
    Locked,
    Refusal,
    Revoked,
    Stopped,
    TooFewReplicas,
    TopicSetting,
    Unavailable,
)
from onceproof.instruments.proxy.frames import Frame, Reply
from onceproof.instruments.proxy.rules import Condition, Rule
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.stack.api import Stack
from onceproof.stores.frames import Service

_ATTEMPT_S = 60.0
"""A refused connection fails at once; this leaves room for a job that retries on its own for a while."""

OF_POSTGRES = ("unavailable", "stopped", "locked", "revoked")
OF_KAFKA = ("too-large", "too-few-replicas")
_TURNS: WeakKeyDictionary[Stack, threading.Lock] = WeakKeyDictionary()
_NEEDS_TABLE = ("locked", "revoked")
_OF_THE_SERVER = ("unavailable", "stopped")
_RECORDED_EVERY_S = 0.005


class RejectSpec(FaultSpec):
    fault: Literal["reject"]
    target: Service
    how: Literal["unavailable", "stopped", "locked", "revoked", "too-large", "too-few-replicas"] = Field(
        description="how it refuses; postgres: unavailable, stopped, locked, revoked; kafka: too-large, too-few-replicas"
    )
    table: str | None = Field(None, description="Postgres, locked and revoked: the table")
    topic: str | None = Field(None, description="Kafka: the topic whose records are refused")
    lasts: Literal["try", "batch"] = Field(
        "batch",
        description="try: ends with the first refusal; batch: outlasts the job's own retries, until its attempt at the batch "
        f"has failed or the batch was committed nevertheless (at most {_ATTEMPT_S:.0f} s)",
    )


@faults.register("reject")
class Reject(AtItsPoint[RejectSpec]):
    """The service refuses from the moment the batch is planned: the first request, or until an attempt at the batch is over."""

    Spec: ClassVar[type[FaultSpec]] = RejectSpec
    about: ClassVar[str] = (
        "the service refuses: Postgres away, a table locked, a right revoked; a topic's records too large, too few replicas"
    )

    def __init__(self, spec: RejectSpec) -> None:
        self._spec = spec
        self._refusal = _refusal_of(spec)
        self._heard: list[Reply] = []
        self._requests: list[float] = []
        self._description = ""
        self._struck_at = 0.0
        self._began = False
        self._turn: threading.Lock | None = None
        self._open = False

    @classmethod
    def takes_turns(cls) -> str:
        return "one service refuses at a time"

    @classmethod
    def reads_frames(cls, spec: RejectSpec) -> bool:
        """True, because the protocol proxy reads the service's answers on their way to the job."""
        return True

    @classmethod
    def needs_control(cls, spec: RejectSpec) -> str | None:
        return {"stopped": "Postgres", "too-few-replicas": "the brokers"}.get(spec.how)

    @classmethod
    def problems(cls, spec: RejectSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = point_problems(spec, (Point.AFTER_OFFSET_LOG,))
        forms = OF_POSTGRES if spec.target == "postgres" else OF_KAFKA
        if spec.how not in forms:
            message = f"{spec.target} cannot refuse by {spec.how!r}"
            problems.append(SpecProblem(("how",), message, f"use one of: {', '.join(forms)}"))
            return problems
        if spec.target == "postgres":
            return problems + _postgres_problems(spec, scenario)
        return problems + _kafka_problems(spec, scenario)

    @classmethod
    def placement(cls, spec: RejectSpec, scenario: Scenario) -> Placement:
        n = spec.at.batch
        proof = f"the refusals that {spec.target} sent to the job while batch {n} was open; batch {n} was committed in the end"
        how = placement_at(spec.at.point, proof, scenario)
        return replace(how, why=f"{how.why}; {NEEDS_TIMEOUT}") if spec.how == "locked" else how

    @classmethod
    def tries(cls, job: Job) -> Iterator[Try]:
        """Postgres unreachable, each of its tables refused, and each topic refused. Each outlasts the job's own retries."""
        point = Point.AFTER_OFFSET_LOG
        offered = False
        for sink in job.places:
            query = job.at_query(sink.query)
            if sink.target == "kafka":
                settings = {"target": "kafka", "how": "too-large", "topic": sink.place}
                yield Try(point, settings, query, words=f"too-large: {sink.place}")
                continue
            if not offered:
                offered = True
                yield Try(point, {"target": "postgres", "how": "unavailable"}, query, words="unavailable")
            settings = {"target": "postgres", "how": "revoked", "table": sink.place}
            yield Try(point, settings, query, words=f"revoked: {sink.place}")
        yield from untried_outputs(job, point)
        if not job.sinks and not job.gaps:
            yield Try(point, n_a=job.no_commit())

    def watch(self, context: FaultContext) -> None:
        """Record when the job sends statements to Postgres: with several queries this shows which of them use it."""
        if self._spec.how in _OF_THE_SERVER:

            def record(_frame: Frame) -> bool:
                now = time.monotonic()
                if not self._requests or now - self._requests[-1] > _RECORDED_EVERY_S:
                    self._requests.append(now)
                return False  # do not stop it

            context.board("postgres").arm(Rule(Condition("statement"), "park", name="requests", proceed=record))

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        # If the job hides a refusal, its next batch may come before this refusal has ended: its driver waits here.
        turn = _turn_of(context.stack)
        if not turn.acquire(timeout=_ATTEMPT_S):
            raise WaitTimeout(f"the refusal in an earlier batch had not ended after {_ATTEMPT_S:.0f} s")
        self._turn = turn
        self._struck_at = context.timeline.now()
        self._began = True
        with context.job.frozen():
            self._description = self._refusal.begin(context)
            context.board(self._spec.target).listen(self._heard)  # answers from here on belong to the batch
            self._open = is_open(context, seen.query, seen.batch)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        n, target, timed_out = seen.batch, self._spec.target, False
        if not self._open:
            return missed(f"batch {n} was no longer open when {target} began to refuse")
        try:
            ended = wait_until(
                f"an attempt at batch {n} to end", lambda: self._ended(context, seen), deadline_s=_ATTEMPT_S
            )
        except WaitTimeout:
            timed_out, ended = True, f"the attempt at batch {n} had not ended after {_ATTEMPT_S:.0f} s"
        refused, hidden = self._refused(), committed(context, seen.query, n)
        why = "" if refused or hidden else self._refusal.why_not_refused(context)
        with context.job.frozen():  # so that the next batch is not affected
            self._refusal.end(context)
        self.heal(context)  # restarting a broker may take minutes, and two replicas of three are enough meanwhile
        if not refused:
            idle = sum(reply.code == "idle" for reply in list(self._heard))
            also = (
                f"; it reset {times(idle, 'connection')} over which the job sent no more than a check" if idle else ""
            )
            nothing = f"{target} refused nothing of batch {n}: {ended}{also}"
            return missed(self._description, nothing, *([why] if why else []))
        context.attempted_writes[seen.query, n] = f"{target} refused what it sent"
        evidence = [self._description, f"while batch {n} was open, {target} {_counted(refused)}", ended]
        if len(context.checkpoint.queries()) > 1:
            attribution = self._attribute(context, seen, refused)
            if not attribution.decided:
                return missed(*evidence, attribution.why)
            evidence.append(attribution.why)
        if all(reply.what == "connection" and reply.code == "refused" for reply in refused):
            # A new connection is reset before it sends anything. If the attempt at the batch failed, that does not matter.
            failed = not hidden and (timed_out or self._spec.lasts == "batch")
            if not failed:
                if (unneeded := self._unneeded(context, seen)) is not None:
                    return missed(*evidence, unneeded)
                evidence.append(
                    "only new connections were refused, which does not show whether they were made to write or, for example, "
                    "to check that Postgres is there"
                )
        if hidden:
            return proven(*evidence, "the job did not fail: it hid the refusal, or wrote later what was refused")
        if timed_out:
            # Whether the job ever continues is judged as its liveness: Kafka's Java producer splits a batch that is too large
            # until its thread dies of a stack overflow (KAFKA-8202).
            return proven(*evidence, f"batch {n} was still open when {target} stopped refusing")
        wait_until(
            f"batch {n} to be committed after {target} stopped refusing",
            lambda: committed(context, seen.query, n),
            deadline_s=RESTART_S,
        )
        return proven(*evidence, f"batch {n} was committed after {target} stopped refusing")

    def heal(self, context: FaultContext) -> None:
        if not self._began:
            return
        try:
            self._refusal.end(context)
            self._refusal.repair(context)
            self._began = False  # heal only once: from here on the next fault may refuse
        finally:
            context.board(self._spec.target).unlisten(self._heard)
            turn, self._turn = self._turn, None
            if turn is not None:
                turn.release()

    def _attribute(self, context: FaultContext, seen: Occurrence, refused: list[Reply]) -> RefusalAttribution:
        """Decide whether the refused requests were those of the struck query."""
        outputs = context.scenario.outputs if context.scenario is not None else {}
        place = self._spec.table or self._spec.topic
        if place is not None:
            named = [spec.query for spec in outputs.values() if place in (spec.table, spec.topic)]
            if named and seen.query not in named and None not in named:
                return RefusalAttribution(False, f"{place} is written by query {named[0]}, not by {seen.query}")
            return RefusalAttribution(True, f"only {place} was refused")
        # Times of replies and requests are those of the monotonic clock.
        zero = time.monotonic() - context.timeline.now()
        return attribute_refusals(
            seen.query,
            context.checkpoint.batches(),
            outputs,
            requests=[at - zero for at in list(self._requests)],
            refusals=[reply.at - zero for reply in refused],
        )

    def _unneeded(self, context: FaultContext, seen: Occurrence) -> str | None:
        """Why the batch would have been committed without Postgres too, as far as that can be seen; None if it cannot."""
        batches = context.checkpoint.batches()
        own = [one for one in batches if one.query == seen.query and one.batch == seen.batch]
        if own and all(one.records() == 0 for one in own):
            return f"batch {seen.batch} read nothing, so it had nothing to write, as far as is known"
        zero = time.monotonic() - context.timeline.now()
        outputs = context.scenario.outputs if context.scenario is not None else {}
        uses = uses_postgres(seen.query, batches, outputs, [at - zero for at in list(self._requests)])
        return (
            "no statement was sent in an earlier batch with data: this query does not use Postgres"
            if uses is False
            else None
        )

    def _refused(self) -> list[Reply]:
        return [reply for reply in list(self._heard) if self._refusal.matches(reply)]

    def _ended(self, context: FaultContext, seen: Occurrence) -> str | None:
        """How the attempt at the batch ended, or the fault itself if it lasts for one try; None while neither has."""
        if self._spec.lasts == "try" and self._refused():
            return "the fault ended with the first refusal"
        if committed(context, seen.query, seen.batch):
            return f"batch {seen.batch} was committed by Spark meanwhile"
        wanted = {"sink": self._spec.target, "query": seen.query, "batch": seen.batch}
        failed = context.sink_event_since(self._struck_at, "attempt-failed", **wanted)  # type: ignore[arg-type]  # str and int
        if failed is not None:
            return f"the sink reported: {one_line(failed.facts.get('message'))}"
        failure = context.job.failed_since(self._struck_at)
        return None if failure is None else f"the driver's attempt failed (exit code {failure.code})"


def _turn_of(stack: Stack) -> threading.Lock:
    """The lock that allows one refusal at a time in a stack: a second one cannot begin while the server is unreachable."""
    return _TURNS.setdefault(stack, threading.Lock())


def _refusal_of(spec: RejectSpec) -> Refusal:
    # `problems` refuses a spec without its table or topic, but the fault must still be constructible from it.
    table, topic = spec.table or "", spec.topic or ""
    match spec.how:
        case "unavailable":
            return Unavailable()
        case "stopped":
            return Stopped()
        case "locked":
            return Locked(table)
        case "revoked":
            return Revoked(table)
        case "too-large":
            # MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE. A record batch's header alone has 61 bytes. The marker that ends a
            # transaction has 78 and must pass: the coordinator never resends a refused one, so the transaction would hang.
            return TopicSetting(topic, {"max.message.bytes": "100"}, (10, 18))
        case "too-few-replicas":
            return TooFewReplicas(topic)


def _postgres_problems(spec: RejectSpec, scenario: Scenario) -> list[SpecProblem]:
    problems = []
    if scenario.stack.postgres is None:
        problems.append(SpecProblem(("target",), "this stack has no Postgres", "add `postgres: {}` to the stack"))
    if spec.how in _NEEDS_TABLE and not spec.table:
        message = f"table is missing: the one that is {spec.how}"
        problems.append(SpecProblem((), message, "for example table: departures"))
    if spec.how not in _NEEDS_TABLE and spec.table is not None:
        problems.append(SpecProblem(("table",), f"{spec.how} affects the whole server, not a table", "remove table"))
    if spec.topic is not None:
        problems.append(SpecProblem(("topic",), "Postgres has no topics", "remove topic, or set target: kafka"))
    return problems


def _kafka_problems(spec: RejectSpec, scenario: Scenario) -> list[SpecProblem]:
    problems = []
    topics = scenario.topics()
    if spec.topic is None:
        message = "topic is missing: the one whose records are refused"
        problems.append(SpecProblem((), message, "for example topic: my-output"))
    elif spec.topic not in topics:
        problems.append(SpecProblem(("topic",), f"no topic is named {spec.topic!r}", suggest(spec.topic, topics)))
    elif spec.topic in {one.topic for one in scenario.input}:
        message = f"topic {spec.topic!r} is fed by onceproof itself, whose records would be refused too"
        problems.append(SpecProblem(("topic",), message, "name a topic that the pipeline writes to"))
    if spec.table is not None:
        problems.append(SpecProblem(("table",), "Kafka has no tables", "remove table, or set target: postgres"))
    if spec.how == "too-few-replicas" and scenario.stack.kafka.brokers < 3:
        message = "too-few-replicas needs three replicas, which a single broker does not have"
        problems.append(SpecProblem(("how",), message, "set stack.kafka.brokers to 3"))
    return problems


def _counted(refused: list[Reply]) -> str:
    """``refused 3 times: connection refused (2), 42501 permission denied for table departures (1)``."""
    kinds = Counter(
        f"connection {reply.code}" if reply.what == "connection" else f"{reply.code} {reply.message}"
        for reply in refused
    )
    listed = ", ".join(f"{kind} ({count})" for kind, count in kinds.most_common(3))
    return f"refused {len(refused)} time{'' if len(refused) == 1 else 's'}: {listed}"
