"""A full disk: where it can be placed, what its proof needs, and that it makes a naive job write a batch twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import onceproof.chaos.disk_full as disk_full
from onceproof.faults.contract import Fault, Occurrence, Proof, SpecProblem
from onceproof.judge.findings import Outcome
from onceproof.run import Result
from onceproof.scenario.points import Point

Problems = Callable[..., list[SpecProblem]]


def spec(point: str = "after-sink-commit") -> dict[str, Any]:
    return {"fault": "disk-full", "target": "checkpoint", "at": {"batch": 2, "point": point}}


@pytest.mark.parametrize("point", ["before-offset-log", "after-sink-commit"])
def test_it_strikes_where_the_driver_is_about_to_write_a_log_entry(problems: Problems, point: str) -> None:
    assert problems(spec(point)) == []
    store = {"brokers": 1, "object_store": {}}
    assert [problem.loc for problem in problems(spec(point), **store)] == [("target",)]


def test_it_is_refused_where_no_log_entry_is_written(problems: Problems) -> None:
    (problem,) = problems(spec("after-offset-log"))
    assert problem.loc == ("at", "point") and "before-offset-log, after-sink-commit" in problem.hint


def test_only_the_checkpoint_file_system_can_refuse_a_write(
    fault: Callable[[dict[str, Any]], Fault], seen: Callable[..., Occurrence]
) -> None:
    one = fault(spec())
    assert one.matches(seen(Point.AFTER_SINK_COMMIT, "checkpoint"))
    assert not one.matches(seen(Point.AFTER_SINK_COMMIT, "watcher"))
    assert not one.matches(seen(Point.BEFORE_OFFSET_LOG, "checkpoint"))


@pytest.mark.parametrize(
    ("before", "log", "left", "hit", "shows"),
    [
        ("", "FSError: java.io.IOException: No space left on device", [], True, "could not write commits/2"),
        ("", "OperationalError: the sink is down", [], False, "the driver to log 'No space left on device'"),
        ("", "FSError: java.io.IOException: No space left on device", ["commits"], False, "was written all the same"),
        ("No space left on device", "No space left on device", [], False, "had already logged"),
    ],
)
def test_its_proof_is_the_kernels_error_and_the_missing_entry(
    before: str,
    log: str,
    left: list[str],
    hit: bool,
    shows: str,
    fault: Callable[[dict[str, Any]], Fault],
    seen: Callable[..., Occurrence],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(disk_full, "_FAILS_S", 0.1)
    disk: list[bool] = []
    logs = [before, log]

    def fill(full: bool) -> None:
        disk.append(full)
        if not full:
            left.append("commits")  # with room again, the next driver commits the batch

    context: Any = SimpleNamespace(
        job=SimpleNamespace(log_contains=lambda words: words in logs[bool(disk)]),
        checkpoint=SimpleNamespace(log_exists=lambda _query, name, _batch: name in left),
        fill_disk=fill,
    )
    one, where = fault(spec()), seen(Point.AFTER_SINK_COMMIT, "checkpoint")
    one.strike(context, where)
    proof: Proof = one.prove(context, where)
    assert proof.hit is hit and shows in " ".join(map(str, proof.evidence)), proof
    one.heal(context)
    assert disk[0] and not disk[-1]


@pytest.mark.real
@pytest.mark.timeout(600)
def test_a_naive_job_writes_the_batch_twice(run_once: Callable[[str | Path], Result]) -> None:
    result = run_once("disk-full-duplicates")
    assert result.verdict.outcome is Outcome.VIOLATED, result.verdict.reasons
    assert list(result.verdict.anomalies()) == ["duplicate"]
    assert [fault.hit for fault in result.verdict.faults] == [True]
    assert "No space left on device" in (result.run_dir / "logs" / "driver-0.log").read_text()
