"""Reject: where it can be placed, and which of a service's answers are the refusal. The real scenarios show its effect."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from onceproof.chaos.reject import Reject, RejectSpec
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, SpecProblem
from onceproof.faults.refusals import (
    Locked,
    Refusal,
    Revoked,
    Stopped,
    TooFewReplicas,
    TopicSetting,
    Unavailable,
)
from onceproof.instruments.checkpoint_watcher import Batch
from onceproof.instruments.proxy.frames import Reply
from onceproof.instruments.proxy.rules import Board
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.points import Point

AT = {"batch": 2, "point": "after-offset-log"}
SPEC: dict[str, Any] = {"fault": "reject", "target": "postgres", "how": "unavailable", "at": AT}
LOCKED = {**SPEC, "how": "locked", "table": "departures"}
TOO_LARGE = {"fault": "reject", "target": "kafka", "how": "too-large", "topic": "out", "at": AT}


TOPIC = OutputSpec(topic="two", identity=["id"], query="other")


def reply(what: str, code: str, message: str = "", where: str = "") -> Reply:
    return Reply(0.0, "proxy", what, code, message, where)


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        {**SPEC, "how": "stopped", "lasts": "try"},
        LOCKED,
        {**LOCKED, "how": "revoked"},
        TOO_LARGE,
        {**TOO_LARGE, "how": "too-few-replicas"},
    ],
)
def test_each_refusal_can_only_begin_when_the_batch_is_planned(
    problems: Callable[..., list[SpecProblem]], spec: dict[str, Any]
) -> None:
    assert problems(spec) == []
    assert problems({**spec, "at": {"batch": 2, "point": "after-commit-log"}})[0].loc == ("at", "point")
    assert Reject.reads_frames(RejectSpec.model_validate(spec)), "its proof is the service's answer to the job"


@pytest.mark.parametrize(
    ("spec", "stack", "loc", "words"),
    [
        (SPEC, {"postgres": False}, ("target",), "no Postgres"),
        ({**SPEC, "how": "locked"}, {}, (), "table is missing"),
        ({**SPEC, "table": "departures"}, {}, ("table",), "whole server"),
        ({**SPEC, "how": "too-large"}, {}, ("how",), "postgres cannot refuse by 'too-large'"),
        ({**TOO_LARGE, "how": "locked"}, {}, ("how",), "kafka cannot refuse by 'locked'"),
        ({**TOO_LARGE, "topic": None}, {}, (), "topic is missing"),
        ({**TOO_LARGE, "topic": "outt"}, {}, ("topic",), "no topic is named 'outt'"),
        ({**TOO_LARGE, "topic": "flights"}, {}, ("topic",), "fed by onceproof itself"),
        ({**TOO_LARGE, "table": "departures"}, {}, ("table",), "Kafka has no tables"),
        ({**LOCKED, "topic": "out"}, {}, ("topic",), "Postgres has no topics"),
        ({**TOO_LARGE, "how": "too-few-replicas"}, {"brokers": 1}, ("how",), "single broker"),
    ],
)
def test_an_impossible_spec_is_refused_with_its_place(
    problems: Callable[..., list[SpecProblem]],
    spec: dict[str, Any],
    stack: dict[str, Any],
    loc: tuple[str, ...],
    words: str,
) -> None:
    (problem,) = problems(spec, **stack)
    assert problem.loc == loc and words in problem.message and problem.hint


@pytest.mark.parametrize("change", [{"how": "politely"}, {"how": None}, {"target": "driver"}, {"lasts": "forever"}])
def test_unknown_values_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RejectSpec.model_validate({**SPEC, **change})


def test_a_reply_counts_only_if_it_is_this_kind_of_refusal() -> None:
    gone, broken = reply("connection", "refused"), reply("error", "57P01", "terminating connection")
    syntax = reply("error", "42601", "syntax error")
    for away in (Unavailable(), Stopped()):
        assert away.matches(gone) and away.matches(broken) and not away.matches(syntax)
    timeout = reply("error", "55P03", "canceling statement due to lock timeout")
    assert Locked("departures").matches(timeout) and not Locked("departures").matches(syntax)
    denied = reply("error", "42501", "permission denied for table departures")
    assert Revoked("public.departures").matches(denied) and not Revoked("arrivals").matches(denied)


def test_a_check_of_a_connection_is_not_refused_a_write() -> None:
    for away in (Unavailable(), Stopped()):
        assert away.matches(reply("connection", "broken")) and not away.matches(reply("connection", "idle"))


def test_a_refused_new_connection_does_not_prove_that_a_write_was_refused(
    monkeypatch: pytest.MonkeyPatch, seen: Callable[..., Occurrence]
) -> None:
    reject, _, context = struck(monkeypatch)
    context.checkpoint.batches = lambda: [batch]
    context.scenario, context.timeline = None, SimpleNamespace(now=time.monotonic)
    occurrence = seen(Point.AFTER_OFFSET_LOG)
    batch = Batch(occurrence.query, occurrence.batch, {}, {"in": {0: 0}}, None, 0.0, 0)
    reject._heard.append(reply("connection", "refused"))
    proof = reject.prove(context, occurrence)
    assert not proof.hit and "it had nothing to write" in proof.evidence[-1]

    batch = Batch(occurrence.query, occurrence.batch, {}, {"in": {0: 5}}, None, 0.0, 0, committed_at=9.0)
    reject, _, context = struck(monkeypatch)
    context.checkpoint.batches = lambda: [batch]
    context.scenario, context.timeline = None, SimpleNamespace(now=time.monotonic)
    reject._heard.append(reply("connection", "refused"))
    proof = reject.prove(context, occurrence)
    assert proof.hit and any("does not show whether they were made to write" in one for one in map(str, proof.evidence))

    reject._requests.append(time.monotonic() + 1e6)  # statements were seen, but none in this query's batch
    reject._turn, reject._began = None, True
    proof = reject.prove(context, occurrence)
    assert not proof.hit and "does not use Postgres" in str(proof.evidence[-1])


class Service(Refusal):
    """A refusal that records how it was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self, context: FaultContext) -> str:
        raise NotImplementedError

    def end(self, context: FaultContext) -> None:
        self.calls.append("end frozen" if context.job.is_frozen else "end")  # type: ignore[attr-defined]

    def repair(self, context: FaultContext) -> None:
        self.calls.append("repair frozen" if context.job.is_frozen else "repair")  # type: ignore[attr-defined]

    def matches(self, reply: Reply) -> bool:
        return True


class Job:
    is_frozen = False

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.is_frozen = True
        yield
        self.is_frozen = False


def struck(monkeypatch: pytest.MonkeyPatch) -> tuple[Reject, Service, Any]:
    reject, service = Reject(RejectSpec.model_validate(SPEC)), Service()
    monkeypatch.setattr(reject, "_refusal", service)
    monkeypatch.setattr(reject, "_open", True)
    monkeypatch.setattr(reject, "_began", True)
    monkeypatch.setattr(reject, "_ended", lambda *_: "it ended")
    monkeypatch.setattr("onceproof.chaos.reject.committed", lambda *_: True)
    board, checkpoint = Board(), SimpleNamespace(queries=list)
    context = SimpleNamespace(job=Job(), board=lambda _service: board, checkpoint=checkpoint, attempted_writes={})
    return reject, service, context


def test_a_slow_repair_runs_once_and_without_stopping_the_driver(
    monkeypatch: pytest.MonkeyPatch, seen: Callable[..., Occurrence]
) -> None:
    reject, service, context = struck(monkeypatch)
    reject._heard.append(reply("error", "1"))
    assert reject.prove(context, seen(Point.AFTER_OFFSET_LOG)).hit
    assert service.calls[0] == "end frozen" and "repair" in service.calls and "repair frozen" not in service.calls
    before = list(service.calls)
    reject.heal(context)  # as the controller does; the next refusal may already have begun
    assert service.calls == before


def test_why_nothing_was_refused_is_asked_before_the_refusal_ends(
    monkeypatch: pytest.MonkeyPatch, seen: Callable[..., Occurrence]
) -> None:
    reject, service, context = struck(monkeypatch)
    monkeypatch.setattr("onceproof.chaos.reject.committed", lambda *_: False)
    monkeypatch.setattr(service, "why_not_refused", lambda _context: "it waits" if not service.calls else "too late")
    proof = reject.prove(context, seen(Point.AFTER_OFFSET_LOG))
    assert not proof.hit and proof.evidence[-1] == "it waits"


def test_the_plan_names_the_lock_timeout_that_a_locked_table_needs(scenario: Callable[..., Scenario]) -> None:
    for spec, named in ((LOCKED, True), ({**LOCKED, "how": "revoked"}, False)):
        why = Reject.placement(RejectSpec.model_validate(spec), scenario()).why
        assert ("lock_timeout" in why and "PGOPTIONS" in why) is named


def test_a_job_that_hangs_after_a_refusal_counts_as_refused(
    monkeypatch: pytest.MonkeyPatch, seen: Callable[..., Occurrence]
) -> None:
    reject, service, context = struck(monkeypatch)
    monkeypatch.setattr(reject, "_ended", lambda *_: None)
    monkeypatch.setattr("onceproof.chaos.reject._ATTEMPT_S", 0.0)
    monkeypatch.setattr("onceproof.chaos.reject.RESTART_S", 0.0)
    monkeypatch.setattr("onceproof.chaos.reject.committed", lambda *_: False)
    assert not reject.prove(context, seen(Point.AFTER_OFFSET_LOG)).hit, "nothing was refused"
    reject._heard.append(reply("error", "1"))
    proof = reject.prove(context, seen(Point.AFTER_OFFSET_LOG))
    assert proof.hit and "still open when postgres stopped refusing" in proof.evidence[-1], proof.evidence
    assert "repair" in service.calls
    reject, _, context = struck(monkeypatch)
    monkeypatch.setattr(reject, "_ended", lambda *_: None)
    reject._heard.append(reply("error", "1"))
    context.checkpoint = SimpleNamespace(
        queries=lambda: ["q", "other"],
        batches=lambda: [Batch(name, 2, {}, {"in": {0: 5}}, None, 0.0, 0) for name in ("q", "other")],
    )
    context.scenario, context.timeline = None, SimpleNamespace(now=time.monotonic)
    proof = reject.prove(context, seen(Point.AFTER_OFFSET_LOG))
    assert not proof.hit and "cannot be decided: q and other had batches open" in proof.evidence[-1]
    tables = {"one": OutputSpec(table="one", identity=["id"], query="q"), "two": TOPIC}
    context.scenario = SimpleNamespace(outputs=tables)
    reject, _, _ = struck(monkeypatch)
    reject._heard.append(reply("error", "1"))
    proof = reject.prove(context, seen(Point.AFTER_OFFSET_LOG))
    assert proof.hit and "of the queries with an open batch only q uses postgres (other does not)" in proof.evidence


def test_a_heal_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reject, service, context = struck(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(service, "repair", lambda _context: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            reject.heal(context)
    reject.heal(context)
    assert service.calls == ["end", "end", "repair"]


def test_a_refusal_by_a_topic_counts_only_for_its_own_partitions() -> None:
    refusal = TopicSetting("out", {"max.message.bytes": "100"}, (10, 18))
    assert refusal.matches(reply("Produce", "10", where="out/2"))
    assert not refusal.matches(reply("Produce", "10", where="other/2"))
    assert not refusal.matches(reply("Produce", "0", where="out/2")), "an acknowledgement is not a refusal"
    assert not refusal.matches(reply("Produce", "6", where="out/2")), "NOT_LEADER_OR_FOLLOWER has another cause"
    assert TooFewReplicas("out").matches(reply("Produce", "19", where="out/0"))
