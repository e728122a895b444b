"""Late request: which specs are valid, and which frame it precedes. The scenarios late-endtxn* show its effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onceproof.faults.contract import Fault, Occurrence, SpecProblem, faults, reads_frames
from onceproof.instruments.proxy.frames import Frame
from onceproof.instruments.proxy.rules import Hit
from onceproof.scenario.points import Point

LATE = {
    "fault": "late-request",
    "target": "kafka",
    "at": {"batch": 2},
    "deliver_before": {"kind": "AddPartitionsToTxn"},
}
Problems = Callable[..., list[SpecProblem]]


def test_a_complete_spec_is_valid(problems: Problems) -> None:
    assert problems(LATE) == []
    assert problems({"fault": "late-request", "target": "postgres", "at": {"batch": 2}}) == []


@pytest.mark.parametrize(
    ("change", "loc", "words"),
    [
        ({"deliver_before": None}, (), "deliver_before is missing"),
        ({"at": {"batch": 2, "point": "after-offset-log"}}, ("at", "point"), "cannot be placed"),
        ({"frame": {"kind": "EndTx"}}, ("frame",), "no request is named 'EndTx'"),
        ({"frame": {"kind": "commit"}}, ("frame", "kind"), "kafka has no request 'commit'"),
        ({"frame": {"transactional_id": "("}}, ("frame",), "no regular expression"),
        ({"deliver_before": {"kind": "Produc"}}, ("deliver_before",), "no request is named 'Produc'"),
    ],
)
def test_an_impossible_spec_is_refused_with_its_place(
    problems: Problems, change: dict[str, Any], loc: tuple[str, ...], words: str
) -> None:
    (problem,) = problems(LATE | change)
    assert (problem.loc == loc and words in problem.message and problem.hint is not None) or "regular" in words


def test_it_is_armed_when_the_batch_is_planned(
    fault: Callable[[dict[str, Any]], Fault], seen: Callable[..., Occurrence]
) -> None:
    late = fault(LATE)
    assert late.matches(seen(Point.AFTER_OFFSET_LOG))
    assert not late.matches(seen(Point.AFTER_COMMIT_LOG))
    assert not late.matches(seen(Point.BEFORE_SINK_COMMIT, "failpoint", "kafka"))


def spec(kind: str, **more: Any) -> Any:
    return faults.get(kind).Spec.model_validate({"fault": kind, "target": "kafka", **more})


def test_only_faults_at_a_frame_need_the_protocol_proxy() -> None:
    at = {"batch": 2}
    assert reads_frames([spec("lost-ack", at=at | {"point": "commit-unacknowledged"})])
    assert reads_frames([spec("late-request", at=at)])
    assert not reads_frames([spec("lost-ack", at=at), spec("lost-request", at=at)])


def test_only_a_statement_over_a_newer_connection_belongs_to_the_cut_off_client(
    fault: Callable[[dict[str, Any]], Fault],
) -> None:
    late: Any = fault({"fault": "late-request", "target": "postgres", "at": {"batch": 2}})

    def statement(connected_at: float) -> Frame:
        return Frame(b"", "statement", {"sql": "SELECT 1"}, connected_at=connected_at)

    assert not late._follows(statement(9.0)), "no request was stopped yet"
    late._late.rule.hits.append(Hit(Frame(b"", "commit"), "postgres", "client", seen_at=4.0, cut_at=5.0))
    assert not late._follows(statement(3.0)) and late._follows(statement(6.0))


def test_in_a_job_with_several_queries_deliver_before_must_identify_the_statement(problems: Problems) -> None:
    spec = {"fault": "late-request", "target": "postgres", "at": {"batch": 2}, "frame": {"transaction": "t"}}
    (problem,) = problems(spec, queries=["a", "b"])
    assert problem.loc == () and "deliver_before is missing" in problem.message
    assert problems(spec | {"deliver_before": {"kind": "statement"}}, queries=["a", "b"])[0].loc == ("deliver_before",)
    assert problems(spec | {"deliver_before": {"kind": "statement", "sql": "t"}}, queries=["a", "b"]) == []
