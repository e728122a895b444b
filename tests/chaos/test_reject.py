"""Reject: where it can be placed, and which of a service's words are the refusal. That it bites is shown by the real scenarios."""

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
    Refusing,
    Revoked,
    Stopped,
    TooFewReplicas,
    TopicSetting,
    Unavailable,
)
from onceproof.instruments.checkpoint_watcher import Batch
from onceproof.instruments.proxy.frames import Reply
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.points import Point

AT = {"batch": 2, "point": "after-offset-log"}
SPEC: dict[str, Any] = {"fault": "reject", "target": "postgres", "how": "unavailable", "at": AT}
LOCKED = {**SPEC, "how": "locked", "table": "departures"}
TOO_LARGE = {"fault": "reject", "target": "kafka", "how": "too-large", "topic": "out", "at": AT}


TOPIC = OutputSpec(topic="two", identity=["id"], query="other")


def said(what: str, code: str, message: str = "", where: str = "") -> Reply:
    return Reply(0.0, "route", what, code, message, where)


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
def test_each_form_begins_when_the_batch_is_planned(
    problems: Callable[..., list[SpecProblem]], spec: dict[str, Any]
) -> None:
    assert problems(spec) == []
    assert problems({**spec, "at": {"batch": 2, "point": "after-commit-log"}})[0].loc == ("at", "point")
    assert Reject.reads_frames(RejectSpec.model_validate(spec)), "its proof is what the service says to the job"


@pytest.mark.parametrize(
    ("spec", "stack", "loc", "words"),
    [
        (SPEC, {"postgres": False}, ("target",), "no Postgres"),
        ({**SPEC, "how": "locked"}, {}, (), "which table"),
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
def test_what_can_never_be_is_refused_with_its_place(
    problems: Callable[..., list[SpecProblem]],
    spec: dict[str, Any],
    stack: dict[str, Any],
    loc: tuple[str, ...],
    words: str,
) -> None:
    (problem,) = problems(spec, **stack)
    assert problem.loc == loc and words in problem.message and problem.hint


@pytest.mark.parametrize("change", [{"how": "politely"}, {"how": None}, {"target": "driver"}, {"lasts": "forever"}])
def test_values_that_do_not_exist(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RejectSpec.model_validate({**SPEC, **change})


def test_only_the_words_of_this_refusal_count() -> None:
    gone, broken = said("connection", "refused"), said("error", "57P01", "terminating connection")
    syntax = said("error", "42601", "syntax error")
    for away in (Unavailable(), Stopped()):
        assert away.is_it(gone) and away.is_it(broken) and not away.is_it(syntax)
    timeout = said("error", "55P03", "canceling statement due to lock timeout")
    assert Locked("departures").is_it(timeout) and not Locked("departures").is_it(syntax)
    denied = said("error", "42501", "permission denied for table departures")
    assert Revoked("public.departures").is_it(denied) and not Revoked("arrivals").is_it(denied)


class Service(Refusing):
    """Counts what is done to it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self, context: FaultContext) -> str:
        raise NotImplementedError

    def end(self, context: FaultContext) -> None:
        self.calls.append("end frozen" if context.job.is_frozen else "end")  # type: ignore[attr-defined]

    def mend(self, context: FaultContext) -> None:
        self.calls.append("mend frozen" if context.job.is_frozen else "mend")  # type: ignore[attr-defined]

    def is_it(self, reply: Reply) -> bool:
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
    monkeypatch.setattr(reject, "_form", service)
    monkeypatch.setattr(reject, "_open", True)
    monkeypatch.setattr(reject, "_began", True)
    monkeypatch.setattr(reject, "_ended", lambda *_: "it ended")
    monkeypatch.setattr("onceproof.chaos.reject.committed", lambda *_: True)
    frames = SimpleNamespace(unlisten=lambda *_: None)
    stack, checkpoint = SimpleNamespace(frames=frames), SimpleNamespace(queries=list)
    context = SimpleNamespace(job=Job(), stack=stack, checkpoint=checkpoint, tried={})
    return reject, service, context


def test_what_takes_time_to_come_back_holds_up_no_driver_and_is_mended_once(
    monkeypatch: pytest.MonkeyPatch, seen: Callable[..., Occurrence]
) -> None:
    reject, service, context = struck(monkeypatch)
    reject._heard.append(said("error", "1"))
    assert reject.prove(context, seen(Point.AFTER_OFFSET_LOG)).hit
    assert service.calls[0] == "end frozen" and "mend" in service.calls and "mend frozen" not in service.calls
    before = list(service.calls)
    reject.heal(context)  # by the controller; the next refusal may have begun by then
    assert service.calls == before


def test_why_nobody_was_refused_is_asked_while_it_is_so(
    monkeypatch: pytest.MonkeyPatch, seen: Callable[..., Occurrence]
) -> None:
    reject, service, context = struck(monkeypatch)
    monkeypatch.setattr("onceproof.chaos.reject.committed", lambda *_: False)
    monkeypatch.setattr(service, "why_nobody", lambda _context: "it waits" if not service.calls else "too late")
    proof = reject.prove(context, seen(Point.AFTER_OFFSET_LOG))
    assert not proof.hit and proof.evidence[-1] == "it waits"


def test_the_plan_says_what_a_locked_table_needs(scenario: Callable[..., Scenario]) -> None:
    for spec, told in ((LOCKED, True), ({**LOCKED, "how": "revoked"}, False)):
        why = Reject.placement(RejectSpec.model_validate(spec), scenario()).why
        assert ("lock_timeout" in why and "PGOPTIONS" in why) is told


def test_a_job_that_hangs_over_a_refusal_was_refused_all_the_same(
    monkeypatch: pytest.MonkeyPatch, seen: Callable[..., Occurrence]
) -> None:
    reject, service, context = struck(monkeypatch)
    monkeypatch.setattr(reject, "_ended", lambda *_: None)
    monkeypatch.setattr("onceproof.chaos.reject._ATTEMPT_S", 0.0)
    monkeypatch.setattr("onceproof.chaos.reject.RESTART_S", 0.0)
    monkeypatch.setattr("onceproof.chaos.reject.committed", lambda *_: False)
    assert not reject.prove(context, seen(Point.AFTER_OFFSET_LOG)).hit, "nothing was refused"
    reject._heard.append(said("error", "1"))
    proof = reject.prove(context, seen(Point.AFTER_OFFSET_LOG))
    assert proof.hit and "still open when postgres gave in" in proof.evidence[-1], proof.evidence
    assert "mend" in service.calls
    reject, _, context = struck(monkeypatch)
    monkeypatch.setattr(reject, "_ended", lambda *_: None)
    reject._heard.append(said("error", "1"))
    context.checkpoint = SimpleNamespace(
        queries=lambda: ["q", "other"],
        batches=lambda: [Batch(name, 2, {}, {"in": {0: 5}}, None, 0.0, 0) for name in ("q", "other")],
    )
    context.scenario, context.timeline = None, SimpleNamespace(now=time.monotonic)
    proof = reject.prove(context, seen(Point.AFTER_OFFSET_LOG))
    assert not proof.hit and "not decidable: queries q and other were open" in proof.evidence[-1]
    tables = {"one": OutputSpec(table="one", identity=["id"], query="q"), "two": TOPIC}
    context.scenario = SimpleNamespace(outputs=tables)
    reject, _, _ = struck(monkeypatch)
    reject._heard.append(said("error", "1"))
    proof = reject.prove(context, seen(Point.AFTER_OFFSET_LOG))
    assert proof.hit and "of the queries that were open only q uses postgres (other does not)" in proof.evidence


def test_a_heal_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reject, service, context = struck(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(service, "mend", lambda _context: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            reject.heal(context)
    reject.heal(context)
    assert service.calls == ["end", "end", "mend"]


def test_a_topics_refusal_is_that_of_its_own_partitions() -> None:
    form = TopicSetting("out", {"max.message.bytes": "100"}, (10, 18))
    assert form.is_it(said("Produce", "10", where="out/2"))
    assert not form.is_it(said("Produce", "10", where="other/2"))
    assert not form.is_it(said("Produce", "0", where="out/2")), "an acknowledgement is none"
    assert not form.is_it(said("Produce", "6", where="out/2")), "NOT_LEADER_OR_FOLLOWER is another matter"
    assert TooFewReplicas("out").is_it(said("Produce", "19", where="out/0"))
