"""What is said of a fault that stops a frame without any service: which frame may be meant, and what proves its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onceproof.chaos.proxy.frames import Answer, Frame
from onceproof.faults import SpecProblem, faults
from onceproof.frame_faults import not_applied
from onceproof.scenario.model import Scenario
from onceproof.spark_conf import FILE_MANAGER

LOST = {"fault": "lost-ack", "target": "postgres", "at": {"batch": 2, "point": "commit-unacknowledged"}}


@pytest.mark.parametrize(
    ("target", "frame", "apart"),
    [
        ("postgres", {}, False),
        ("postgres", {"transaction": "departures"}, True),
        ("postgres", {"kind": "statement", "sql": "departures"}, True),
        ("postgres", {"nth": 2}, False),
        ("kafka", {}, False),
        ("kafka", {"transactional_id": "^sums-"}, True),
        ("kafka", {"kind": "Produce"}, False),
        ("kafka", {"kind": "Produce", "topic": "out"}, True),
        ("kafka", {"kind": "EndTxn", "topic": "out"}, False),
    ],
)
def test_among_several_queries_a_frame_must_be_told_apart(
    problems: Callable[..., list[SpecProblem]], target: str, frame: dict[str, Any], apart: bool
) -> None:
    spec = LOST | {"target": target, "frame": frame}
    assert problems(spec) == []
    several = problems(spec, queries=["a", "b"])
    named = problems(spec | {"at": {"batch": 2, "point": "commit-unacknowledged", "query": "a"}})
    assert several == named
    assert [problem.loc for problem in several] == ([] if apart else [("frame",)])


def test_with_a_file_manager_of_the_jobs_own_the_rule_is_armed_too_late_to_be_exact(
    scenario: Callable[..., Scenario],
) -> None:
    kind = faults.get("lost-ack")
    spec = kind.Spec.model_validate(LOST)
    assert kind.placement(spec, scenario()).exactness == "exact"
    own = kind.placement(spec, scenario(command=["true", "--conf", f"{FILE_MANAGER}=mine.Manager"]))
    assert own.exactness == "approximate" and "watcher" in own.instrument


@pytest.mark.parametrize(
    ("kind", "xid", "facts", "said"),
    [
        ("commit", "7", {"tags": ["COMMIT"], "sqlstate": None}, None),
        ("commit", "7", {"tags": ["INSERT 0 1", "COMMIT"], "sqlstate": None}, None),
        ("commit", "7", {"tags": ["ROLLBACK"], "sqlstate": None}, "did not commit"),
        ("commit", "7", {"tags": [], "sqlstate": None}, "did not commit"),
        ("commit", "7", {"tags": [], "sqlstate": "40001"}, "refused"),
        ("commit", None, {"tags": ["COMMIT"], "sqlstate": None}, "had no id"),
        ("statement", "7", {"tags": ["INSERT 0 1"], "sqlstate": None}, None),
        ("statement", None, {"tags": ["INSERT 0 1"], "sqlstate": None}, "had no id"),
        ("EndTxn", None, {"error_codes": [0]}, None),
        ("EndTxn", None, {"error_codes": [0, 51]}, "refused"),
        ("EndTxn", None, {"error_codes": []}, "not known"),
        ("EndTxn", None, {"undecodable": "version 99 of EndTxn"}, "version 99 of EndTxn"),
    ],
)
def test_an_answer_is_lost_only_of_what_was_surely_applied(
    kind: str, xid: str | None, facts: dict[str, Any], said: str | None
) -> None:
    frame = Frame(b"", kind)
    told = not_applied(frame, Answer(b"", frame, facts), xid)
    assert (told is None) if said is None else (told is not None and said in told)
