"""Late request: what can be said of it without services. That it bites is shown by the scenarios late-endtxn*."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onceproof.faults import Fault, Occurrence, SpecProblem, faults, reads_frames
from onceproof.points import Point

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
