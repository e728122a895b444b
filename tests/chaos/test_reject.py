"""Reject: where it can be placed, and which of a service's words are the refusal. That it bites is shown by the real scenarios."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from onceproof.chaos.proxy.frames import Reply
from onceproof.chaos.reject import Reject, RejectSpec
from onceproof.faults import SpecProblem
from onceproof.refusing import Locked, Revoked, Stopped, TooFewReplicas, TopicSetting, Unavailable

AT = {"batch": 2, "point": "after-offset-log"}
SPEC: dict[str, Any] = {"fault": "reject", "target": "postgres", "how": "unavailable", "at": AT}
LOCKED = {**SPEC, "how": "locked", "table": "departures"}
TOO_LARGE = {"fault": "reject", "target": "kafka", "how": "too-large", "topic": "out", "at": AT}


def said(what: str, code: str, message: str = "", where: str = "") -> Reply:
    return Reply(0.0, "road", what, code, message, where)


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


def test_a_topics_refusal_is_that_of_its_own_partitions() -> None:
    form = TopicSetting("out", {"max.message.bytes": "100"}, (10, 18))
    assert form.is_it(said("Produce", "10", where="out/2"))
    assert not form.is_it(said("Produce", "10", where="other/2"))
    assert not form.is_it(said("Produce", "0", where="out/2")), "an acknowledgement is none"
    assert not form.is_it(said("Produce", "6", where="out/2")), "NOT_LEADER_OR_FOLLOWER is another matter"
    assert TooFewReplicas("out").is_it(said("Produce", "19", where="out/0"))
