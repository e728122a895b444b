"""Every shipped scenario on real Kafka, Spark, Postgres and Toxiproxy: its expectation is met, and every fault hit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from onceproof.judge.findings import Finding, Outcome, Verdict
from onceproof.judge.verdict import check
from onceproof.run import Result
from onceproof.scenario.load import find, load, names

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
RunOnce = Callable[[str | Path], Result]
HERE = Path(__file__).parent / "scenarios"


def said(verdict: Verdict) -> str:
    return "\n".join([verdict.outcome, *verdict.reasons, *(f"{f.fault}: {f.evidence}" for f in verdict.faults)])


def the_finding(verdict: Verdict, anomaly: str) -> Finding:
    found = [f for f in verdict.findings if f.anomaly == anomaly and f.allowed is None]
    assert len(found) == 1, verdict.findings
    return found[0]


@pytest.mark.parametrize("name", names())
def test_its_expectation_is_met_and_every_fault_hit(run_once: RunOnce, name: str) -> None:
    verdict = run_once(name).verdict
    expect = load(find(name)).expect
    assert verdict.outcome.value == expect.verdict, said(verdict)
    assert sorted(verdict.anomalies()) == sorted(expect.anomalies), said(verdict)
    assert verdict.faults, "a scenario without a fault proves nothing"
    assert all(f.armed and f.fired and f.hit for f in verdict.faults), said(verdict)
    assert all(f.evidence for f in verdict.faults)


def test_effectively_once_breaks_four_things_in_one_run(run_once: RunOnce) -> None:
    verdict = run_once("effectively-once").verdict
    assert {(f.fault, f.target) for f in verdict.faults} == {
        ("crash", "driver"),
        ("partition", "leader"),
        ("lost-ack", "postgres"),
        ("reject", "postgres"),
    }
    assert verdict.counts["input"] == 60_000
    effects = {name: n for name, n in verdict.counts.items() if name.startswith("effects.")}
    assert len(effects) == 2 and len(set(effects.values())) == 1, verdict.counts


@pytest.mark.parametrize("name", ["naive-append", "naive-kafka-sink"])
def test_a_naive_twins_duplicates_are_named(run_once: RunOnce, name: str) -> None:
    verdict = run_once(name).verdict
    batch = verdict.faults[0].batch
    finding = the_finding(verdict, "duplicate")
    assert sum(finding.attribution.values()) == finding.total > 0
    assert list(finding.attribution) == [source for source in finding.attribution if f"batch {batch}" in source]
    assert finding.witnesses and all(w.batch == batch and len(w.positions) >= 2 for w in finding.witnesses)


@pytest.mark.parametrize(
    ("naive", "right"), [("naive-append", "driver-crash-postgres"), ("naive-kafka-sink", "driver-crash-kafka")]
)
def test_twins_differ_in_the_job_alone(naive: str, right: str) -> None:
    one, other = load(find(naive)), load(find(right))
    assert (one.stack.kafka, one.input, one.chaos) == (other.stack.kafka, other.input, other.chaos)


def test_a_stored_run_is_judged_the_same_elsewhere(run_once: RunOnce, tmp_path: Path) -> None:
    import shutil

    result = run_once("naive-append")
    copy = shutil.copytree(result.run_dir, tmp_path / "elsewhere", symlinks=True)
    again = check(copy)
    assert (again.outcome, again.findings, again.faults) == (
        result.verdict.outcome,
        result.verdict.findings,
        result.verdict.faults,
    )


def test_no_password_is_written_down(run_once: RunOnce) -> None:
    run_dir = run_once("driver-crash-postgres").run_dir
    text = (run_dir / "run.json").read_text() + (run_dir / "events.jsonl").read_text()
    assert "password" not in text.lower()


def test_the_history_holds_what_was_sent(run_once: RunOnce) -> None:
    run_dir = run_once("effectively-once").run_dir
    query = "SELECT count(*), count(*) FILTER (status = 'acked') FROM read_parquet(?)"
    assert duckdb.execute(query, [str(run_dir / "history" / "sent.parquet")]).fetchone() == (60_000, 60_000)
    document = json.loads((run_dir / "run.json").read_text())
    assert document["drained"] is True and document["job"]["starts"] >= 4


def test_lost_requests_at_both_sinks_hit_and_change_nothing(run_once: RunOnce) -> None:
    verdict = run_once(HERE / "lost-request.yaml").verdict
    assert verdict.outcome is Outcome.HELD, said(verdict)
    assert [(f.fault, f.target, f.hit) for f in verdict.faults] == [
        ("lost-request", "postgres", True),
        ("lost-request", "kafka", True),
    ]


def test_a_driver_can_crash_at_every_point_in_one_run(run_once: RunOnce) -> None:
    verdict = run_once(HERE / "crash-at-every-point.yaml").verdict
    assert verdict.outcome is Outcome.HELD, said(verdict)
    assert [(f.point, f.hit) for f in verdict.faults] == [
        ("after-offset-log", True),
        ("before-sink-commit", True),
        ("after-sink-commit", True),
        ("after-commit-log", True),
    ]


def test_a_job_without_its_package_is_inconclusive_and_shows_its_own_words(run_once: RunOnce) -> None:
    verdict = run_once(HERE / "broken-job.yaml").verdict
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert any("died before any fault" in reason for reason in verdict.reasons), verdict.reasons
    assert any("ModuleNotFoundError" in reason for reason in verdict.reasons), verdict.reasons


def test_a_job_that_swallows_its_sinks_errors_is_caught(run_once: RunOnce) -> None:
    verdict = run_once(HERE / "swallows-errors.yaml").verdict
    assert verdict.outcome is Outcome.VIOLATED, said(verdict)
    assert "lost-write" in verdict.anomalies()


def test_a_fault_that_cannot_come_is_inconclusive_never_held(run_once: RunOnce) -> None:
    verdict = run_once(HERE / "never-parks.yaml").verdict
    assert verdict.outcome is Outcome.INCONCLUSIVE, said(verdict)
    assert [(f.armed, f.fired, f.hit) for f in verdict.faults] == [(True, False, False)]
