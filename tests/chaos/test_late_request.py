"""Late request: what can be said of it without services. That it bites is shown by the scenarios late-endtxn*."""

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


def test_a_whole_spec_is_fine(problems: Problems) -> None:
    assert problems(LATE) == []
    assert problems({"fault": "late-request", "target": "postgres", "at": {"batch": 2}}) == []


@pytest.mark.parametrize(
    ("change", "loc", "words"),
    [
        ({"deliver_before": None}, (), "when is it to arrive"),
        ({"at": {"batch": 2, "point": "after-offset-log"}}, ("at", "point"), "cannot be placed"),
        ({"frame": {"kind": "EndTx"}}, ("frame",), "no request is named 'EndTx'"),
        ({"frame": {"kind": "commit"}}, ("frame", "kind"), "kafka has no request 'commit'"),
        ({"frame": {"transactional_id": "("}}, ("frame",), "no regular expression"),
        ({"deliver_before": {"kind": "Produc"}}, ("deliver_before",), "no request is named 'Produc'"),
    ],
)
def test_what_can_never_work_is_told_with_its_place(
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


def test_only_a_run_with_a_fault_that_reads_frames_has_the_proxy() -> None:
    at = {"batch": 2}
    assert reads_frames([spec("lost-ack", at=at | {"point": "commit-unacknowledged"})])
    assert reads_frames([spec("late-request", at=at)])
    assert not reads_frames([spec("lost-ack", at=at), spec("lost-request", at=at)])


def test_only_a_connection_made_since_the_cut_is_its_clients_next_step(
    fault: Callable[[dict[str, Any]], Fault],
) -> None:
    late: Any = fault({"fault": "late-request", "target": "postgres", "at": {"batch": 2}})

    def statement(connected_at: float) -> Frame:
        return Frame(b"", "statement", {"sql": "SELECT 1"}, connected_at=connected_at)

    assert not late._follows(statement(9.0)), "nothing is late yet"
    late._late.rule.hits.append(Hit(Frame(b"", "commit"), "postgres", "client", seen_at=4.0, cut_at=5.0))
    assert not late._follows(statement(3.0)) and late._follows(statement(6.0))


def test_of_several_queries_the_next_statement_must_be_told_apart(problems: Problems) -> None:
    spec = {"fault": "late-request", "target": "postgres", "at": {"batch": 2}, "frame": {"transaction": "t"}}
    (problem,) = problems(spec, queries=["a", "b"])
    assert problem.loc == () and "which query's next statement" in problem.message
    assert problems(spec | {"deliver_before": {"kind": "statement"}}, queries=["a", "b"])[0].loc == ("deliver_before",)
    assert problems(spec | {"deliver_before": {"kind": "statement", "sql": "t"}}, queries=["a", "b"]) == []
