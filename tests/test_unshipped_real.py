"""The scenarios in tests/scenarios, which only tests use, on real Kafka, Spark, Postgres and Toxiproxy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from onceproof.judge.findings import Outcome
from onceproof.run import Result

from .conformance import record
from .gate import summary

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
full = pytest.mark.full
RunOnce = Callable[[str | Path], Result]
HERE = Path(__file__).parent / "scenarios"


@full
def test_lost_requests_at_both_sinks_hit_and_change_nothing(run_once: RunOnce) -> None:
    result = run_once(HERE / "lost-request.yaml")
    verdict = result.verdict
    assert verdict.outcome is Outcome.HELD, summary(verdict)
    record("embedded", "lost-request", verdict, result.run_dir)
    assert [(f.fault, f.target, f.hit) for f in verdict.faults] == [
        ("lost-request", "postgres", True),
        ("lost-request", "kafka", True),
    ]


@full
def test_a_driver_can_crash_at_every_point_in_one_run(run_once: RunOnce) -> None:
    verdict = run_once(HERE / "crash-at-every-point.yaml").verdict
    assert verdict.outcome is Outcome.HELD, summary(verdict)
    assert [(f.point, f.hit) for f in verdict.faults] == [
        ("after-offset-log", True),
        ("before-sink-commit", True),
        ("after-sink-commit", True),
        ("after-commit-log", True),
        ("before-offset-log", True),
    ]


@full
def test_a_driver_can_crash_between_two_state_partitions(run_once: RunOnce) -> None:
    verdict = run_once(HERE / "state-partly-committed.yaml").verdict
    assert verdict.outcome is Outcome.HELD, summary(verdict)
    (fault,) = verdict.faults
    assert fault.hit and "state of batch 3 in 1 of " in " ".join(fault.evidence), summary(verdict)


def test_a_job_that_lacks_a_package_is_inconclusive_and_its_error_is_shown(run_once: RunOnce) -> None:
    verdict = run_once(HERE / "broken-job.yaml").verdict
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert any("died before any fault" in reason for reason in verdict.reasons), verdict.reasons
    assert any("ModuleNotFoundError" in reason for reason in verdict.reasons), verdict.reasons


def test_every_kind_of_fault_at_brokers_and_the_controller_hits(run_once: RunOnce) -> None:
    verdict = run_once(HERE / "brokers-away.yaml").verdict
    assert verdict.outcome is Outcome.HELD, summary(verdict)
    assert all(f.hit for f in verdict.faults), summary(verdict)
    evidence = [" ".join(f.evidence) for f in verdict.faults]
    assert ["moved from broker" in text for text in evidence[:3]] == [True] * 3
    assert "leads the quorum in epoch" in evidence[3] and "batch 5 was committed without it" in evidence[4]
    assert "only packets from it were lost" in evidence[5]
    assert "NOT_ENOUGH_REPLICAS" in evidence[6] and "MSG_SIZE_TOO_LARGE" in evidence[7]


@pytest.mark.full
def test_a_job_that_swallows_its_sinks_errors_is_violated(run_once: RunOnce) -> None:
    verdict = run_once(HERE / "swallows-errors.yaml").verdict
    assert verdict.outcome is Outcome.VIOLATED, summary(verdict)
    assert "lost-write" in verdict.anomalies()


@pytest.mark.parametrize(
    ("scenario", "instrument", "warnings"),
    [
        (HERE / "swallows-errors.yaml", "watcher", 1),
        pytest.param(HERE / "state-partly-committed.yaml", "checkpoint", 0, marks=full),
    ],
)
def test_a_job_with_its_own_checkpoint_file_manager_is_watched_and_a_warning_says_so(
    run_once: RunOnce, scenario: Path, instrument: str, warnings: int
) -> None:
    events = [json.loads(line) for line in (run_once(scenario).run_dir / "events.jsonl").read_text().splitlines()]
    assert [event["instrument"] for event in events if event["kind"] == "fault.fired"] == [instrument]
    messages = [event["message"] for event in events if event["kind"] == "warning"]
    assert len([message for message in messages if "checkpointFileManagerClass" in message]) == warnings


def test_a_fault_whose_point_is_never_reached_is_inconclusive(run_once: RunOnce) -> None:
    verdict = run_once(HERE / "never-parks.yaml").verdict
    assert verdict.outcome is Outcome.INCONCLUSIVE, summary(verdict)
    assert [(f.armed, f.fired, f.hit) for f in verdict.faults] == [(True, False, False)]


@full
def test_batches_without_input_write_the_windows_that_they_close(run_once: RunOnce) -> None:
    result = run_once(HERE / "batches-without-input.yaml")
    assert result.verdict.outcome is Outcome.HELD, summary(result.verdict)
    history = result.run_dir / "history"
    empty = f"SELECT batch FROM '{history}/batches.parquet' GROUP BY 1 HAVING sum(end_offset - start_offset) = 0"
    without_input = {batch for (batch,) in duckdb.execute(empty).fetchall()} - {0}
    events = [json.loads(line) for line in (result.run_dir / "events.jsonl").read_text().splitlines()]
    committed = {event["batch"] for event in events if event["kind"] == "sink.committed"}
    assert without_input & committed
    # The driver was killed before it planned batch 2: its successor plans that batch only when there is more input.
    assert [fault.hit for fault in result.verdict.faults] == [True, True], summary(result.verdict)
    assert 5 in without_input and 2 not in without_input


@full
def test_a_run_waits_for_the_batch_without_input_that_writes_its_last_rows(run_once: RunOnce) -> None:
    """A left join without faults: unpaid orders are written once the watermark has passed them, the last by the last batch."""
    result = run_once(HERE / "stream-left-join.yaml")
    assert result.verdict.outcome is Outcome.HELD, summary(result.verdict)
    batches = f"'{result.run_dir / 'history' / 'batches.parquet'}'"
    query = f"""SELECT sum(end_offset - start_offset), max(watermark_ms), bool_and(committed_at IS NOT NULL)
        FROM {batches} GROUP BY batch ORDER BY batch DESC LIMIT 1"""
    records, watermark, committed = duckdb.execute(query).fetchone() or (None, None, None)
    assert (records, committed) == (0, True)
    # Orders have even numbers, and every fifth is unpaid. An order stays open until the watermark is a minute past it.
    last = watermark / 1000 - 1_704_067_200
    assert result.verdict.counts["open.orders"] == sum(number + 60 > last for number in range(0, 2400, 10))
