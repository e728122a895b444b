"""Faults of the object store that holds the checkpoint, and crashes of a driver whose checkpoint is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceproof.faults.contract import SpecProblem
from onceproof.judge.findings import Outcome
from onceproof.run import Result

HERE = Path(__file__).parents[1] / "scenarios"
KINDS = ("lost-put", "slow-put", "rejected-put")


@pytest.mark.parametrize("kind", KINDS)
def test_they_need_an_object_store_and_strike_where_the_commit_log_is_written(
    kind: str, problems: Callable[..., list[SpecProblem]]
) -> None:
    put: dict[str, Any] = {"fault": kind, "target": "object-store", "at": {"batch": 2}}
    assert problems(put, object_store={}) == []
    assert [problem.loc for problem in problems(put)] == [("target",)]
    early = {**put, "at": {"batch": 2, "point": "after-offset-log"}}
    assert [problem.loc for problem in problems(early, object_store={})] == [("at", "point")]


def test_a_checkpoint_in_the_object_store_cannot_be_damaged(problems: Callable[..., list[SpecProblem]]) -> None:
    damage = {
        "fault": "checkpoint-damage",
        "target": "checkpoint",
        "what": "commit",
        "at": {"batch": 2, "point": "after-commit-log"},
    }
    assert problems(damage) == []
    assert [problem.loc for problem in problems(damage, object_store={})] == [("target",)]


@pytest.mark.real
@pytest.mark.timeout(600)
def test_a_job_writes_each_row_once_whatever_its_object_store_does(run_once: Callable[[str | Path], Result]) -> None:
    result = run_once("object-store-refuses")
    assert result.verdict.outcome is Outcome.HELD, result.verdict.reasons
    assert [fault.hit for fault in result.verdict.faults] == [True, True, True]


@pytest.mark.real
@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_driver_continues_from_the_object_store_after_each_crash(run_once: Callable[[str | Path], Result]) -> None:
    result = run_once("object-store-checkpoint")
    assert result.verdict.outcome is Outcome.HELD, result.verdict.reasons
    assert [fault.hit for fault in result.verdict.faults] == [True, True]
    copied = {path.name for path in (result.run_dir / "checkpoint" / "flights" / "commits").iterdir()}
    assert {"2", "4"} <= copied


@pytest.mark.real
@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("naive", ["object-store-checkpoint-naive", "object-store-refuses-naive"])
def test_the_naive_twin_duplicates_the_replayed_batch(naive: str, run_once: Callable[[str | Path], Result]) -> None:
    verdict = run_once(naive).verdict
    assert verdict.outcome is Outcome.VIOLATED, verdict.reasons
    assert set(verdict.anomalies()) == {"duplicate"}
    assert all(fault.hit for fault in verdict.faults)


@pytest.mark.real
@pytest.mark.full
@pytest.mark.timeout(600)
def test_state_of_rocksdb_in_the_object_store_survives_crashes(run_once: Callable[[str | Path], Result]) -> None:
    verdict = run_once(HERE / "object-store-state.yaml").verdict
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    assert [fault.hit for fault in verdict.faults] == [True, True]


@pytest.mark.real
@pytest.mark.full
@pytest.mark.timeout(600)
def test_another_manager_of_checkpoint_files_writes_through_ours(run_once: Callable[[str | Path], Result]) -> None:
    verdict = run_once(HERE / "object-store-one-put.yaml").verdict
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    lost, crash = verdict.faults
    assert lost.hit and crash.hit
    (request, *_) = map(str, lost.evidence)
    assert "PUT onceproof/checkpoint/flights/commits/2 was delivered" in request  # not a copy of a temporary object
