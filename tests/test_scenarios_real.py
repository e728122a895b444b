"""Every shipped scenario on real Kafka, Spark, Postgres and Toxiproxy: it has the expected verdict, and every fault hits.

The gate runs the scenarios in `gate.SCENARIOS`; `tox -e full` runs all (marker ``full``).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir

import duckdb
import pytest
from typer.testing import CliRunner

from onceproof.cli.app import app
from onceproof.data import open_dataset
from onceproof.faults.takeover import NOTHING_WRITTEN
from onceproof.history.run_record import RunRecord
from onceproof.judge.findings import Finding, Outcome, Verdict
from onceproof.judge.verdict import check
from onceproof.run import Result
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find, folder, names

from .conformance import record
from .gate import OF_CONSUMERS, assert_as_expected, by_stack, gate, summary

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
full = pytest.mark.full
RunOnce = Callable[[str | Path], Result]

#: Shipped scenarios that are not run here, to save time -> what covers them instead.
NOT_HERE = {
    "foreign-psycopg-upsert": "the second query of foreign-two-queries",
    "foreign-kafka-sink": "the test of `onceproof init` below runs its job",
    "foreign-two-sinks": "foreign-kafka-sink and foreign-job, one for each sink",
    "foreign-no-checkpoint": "a test below: no fault can be placed on it",
}


def the_finding(verdict: Verdict, anomaly: str) -> Finding:
    found = [f for f in verdict.findings if f.anomaly == anomaly and f.allowed is None]
    assert len(found) == 1, verdict.findings
    return found[0]


@pytest.mark.parametrize(
    "name", gate(*by_stack(name for name in names() if name not in OF_CONSUMERS | NOT_HERE.keys()))
)
def test_a_scenario_has_the_expected_verdict_and_every_fault_hits(run_once: RunOnce, name: str) -> None:
    result = run_once(name)
    assert_as_expected(name, result.verdict, result.run_dir)
    record("embedded", name, result.verdict, result.run_dir)


def test_effectively_once_has_four_faults_in_one_run(run_once: RunOnce) -> None:
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


@pytest.mark.parametrize("name", gate("naive-append", "naive-kafka-sink"))
def test_a_naive_twins_duplicates_are_attributed_to_the_struck_batch(run_once: RunOnce, name: str) -> None:
    verdict = run_once(name).verdict
    batch = verdict.faults[0].batch
    finding = the_finding(verdict, "duplicate")
    assert sum(finding.attribution.values()) == finding.total > 0
    assert list(finding.attribution) == [source for source in finding.attribution if f"batch {batch}" in source]
    assert finding.witnesses and all(w.batch == batch and len(w.positions) >= 2 for w in finding.witnesses)


@pytest.mark.parametrize(
    ("naive", "right"),
    [
        ("naive-append", "driver-crash-postgres"),
        ("naive-kafka-sink", "driver-crash-kafka"),
        ("naive-hourly-delays", "hourly-delays"),
        ("naive-memory-state", "rebuilt-state"),
        ("naive-plane-sessions", "plane-sessions"),
        ("naive-open-sessions", "plane-sessions"),
        ("naive-hopping-windows", "hopping-windows"),
        ("naive-sliding-windows", "sliding-windows"),
        ("rate-by-batch", "rate-by-event-time"),
        ("naive-device-clocks", "device-clocks"),
        ("naive-flights-with-weather", "flights-with-weather"),
        ("naive-flights-with-versions", "flights-with-versions"),
        ("naive-memory-join", "flights-with-weather"),
        ("naive-memory-versions", "flights-with-versions"),
        ("sales-at-current-rate", "sales-with-rate-id"),
        ("naive-avro-orders", "avro-orders"),
        ("naive-orders-with-payments", "orders-with-payments"),
        ("naive-stragglers", "stragglers"),
        ("zombie-driver-unfenced", "zombie-driver"),
        ("zombie-driver-kafka-random-id", "zombie-driver-kafka"),
        ("two-drivers", "two-drivers-fenced"),
        ("transaction-left-open-random-id", "transaction-left-open"),
        ("torn-batch-autocommit", "torn-batch"),
        ("progress-first-two-transactions", "progress-first"),
        ("between-sinks-shared-progress", "between-sinks"),
        ("aborted-input-uncommitted", "aborted-input"),
        ("replay-diverges", "replay-repeats"),
    ],
)
def test_twins_differ_only_in_the_job(naive: str, right: str) -> None:
    one, other = load(find(naive)), load(find(right))
    assert (one.stack.kafka, one.input, one.chaos) == (other.stack.kafka, other.input, other.chaos)
    assert (one.oracle, one.claim) == (other.oracle, other.claim)


@pytest.mark.parametrize(
    "name", gate("zombie-driver", "zombie-driver-kafka", "two-drivers-fenced", "two-drivers-kafka")
)
def test_a_fenced_zombie_changes_no_sink(run_once: RunOnce, name: str) -> None:
    (fault,) = run_once(name).verdict.faults
    assert NOTHING_WRITTEN in fault.evidence and "enced" in " ".join(fault.evidence), fault.evidence


@pytest.mark.parametrize("name", gate("zombie-driver-unfenced", "zombie-driver-kafka-random-id", "two-drivers"))
def test_a_zombies_writes_are_distinguished_from_its_successors(run_once: RunOnce, name: str) -> None:
    verdict = run_once(name).verdict
    (fault,) = verdict.faults
    assert [sentence for sentence in fault.evidence if sentence.startswith("meanwhile it changed ")], fault.evidence
    zombie, copies = the_finding(verdict, "zombie-write"), the_finding(verdict, "duplicate")
    assert zombie.total == copies.total > 0 and zombie.attribution == {
        "by driver start 0 after 1 had taken over": zombie.total
    }
    assert zombie.batches == copies.batches == {f"flights/{fault.batch}": zombie.total}


@full
def test_a_crash_between_two_sinks_leaves_the_first_ahead_until_the_replay(run_once: RunOnce) -> None:
    for name in ("between-sinks", "between-sinks-shared-progress"):
        verdict = run_once(name).verdict
        evidence = " ".join(verdict.faults[0].evidence)
        assert "table departures: " in evidence and "topic departures: " not in evidence, summary(verdict)


@full
@pytest.mark.parametrize(("name", "windows"), [("naive-hourly-delays", 1), ("naive-hopping-windows", 4)])
def test_a_replayed_increment_counts_each_flight_twice_in_each_window(
    run_once: RunOnce, name: str, windows: int
) -> None:
    result = run_once(name)
    history = result.run_dir / "history"
    departed = f"""
        SELECT b.batch FROM '{history}/batches.parquet' b JOIN '{history}/input.parquet' i
          ON (i.topic, i.partition) = (b.topic, b.partition) AND i."offset" >= b.start_offset AND i."offset" < b.end_offset
        WHERE decode(i.value) ->> 'dep_time' IS NOT NULL"""
    counted = f"SELECT sum((content ->> 'flights')::BIGINT) FROM '{history}/snapshot.parquet'"
    twice = f"SELECT count(*) FILTER (batch = {result.verdict.faults[0].batch}), count(*) FROM ({departed})"
    replayed, all_of_them = duckdb.execute(twice).fetchone() or (0, 0)
    assert duckdb.execute(counted).fetchone() == (windows * (all_of_them + replayed),) and replayed > 0


@full
def test_state_written_before_a_crash_is_not_used_and_the_replay_writes_its_own(run_once: RunOnce) -> None:
    """Batch N writes version N+1. The commit log names one of its two changelogs, the one that the replay wrote."""
    result = run_once("rebuilt-state")
    batch = result.verdict.faults[0].batch
    assert batch is not None
    checkpoint = result.run_dir / "checkpoint" / "hours"
    commit = json.loads((checkpoint / "commits" / str(batch)).read_text().splitlines()[1])
    for partition, (committed,) in enumerate(commit["stateUniqueIds"]["0"]):
        written = list((checkpoint / "state" / "0" / str(partition)).glob(f"{batch + 1}_*.changelog"))
        assert len(written) == 2, "the crash came before the batch wrote its state"
        assert f"{batch + 1}_{committed}.changelog" in {path.name for path in written}


@full
def test_totals_held_in_memory_are_too_low_after_a_crash(run_once: RunOnce) -> None:
    result = run_once("naive-memory-state")
    finding = the_finding(result.verdict, "wrong-value")
    departed = "SELECT count(*) FROM read_parquet(?) WHERE decode(value) ->> 'dep_time' IS NOT NULL"
    counted = "SELECT sum((content ->> 'flights')::BIGINT) FROM read_parquet(?)"
    history = result.run_dir / "history"
    sent = duckdb.execute(departed, [str(history / "input.parquet")]).fetchone() or (0,)
    found = duckdb.execute(counted, [str(history / "snapshot.parquet")]).fetchone() or (0,)
    assert found[0] <= sent[0] - finding.total < sent[0]


@pytest.mark.parametrize("name", gate("plane-sessions", "flights-with-weather"))
def test_the_last_watermark_is_past_the_last_flight(run_once: RunOnce, name: str) -> None:
    """So every window and join that is judged was closed at the end."""
    history = run_once(name).run_dir / "history"
    last_flight = f"""SELECT max(timestamp_ms) FROM '{history}/input.parquet'
        WHERE topic = 'flights' AND decode(value) ->> 'closing' IS NULL"""
    watermark = f"SELECT max(watermark_ms) FROM '{history}/batches.parquet' WHERE committed_at IS NOT NULL"
    (last,) = duckdb.execute(last_flight).fetchone() or (0,)
    assert (duckdb.execute(watermark).fetchone() or (0,))[0] > last


@full
def test_some_flights_are_written_without_weather_and_most_with_it(run_once: RunOnce) -> None:
    history = run_once("flights-with-weather").run_dir / "history"
    query = """SELECT count(*) FILTER (content ->> 'visib' IS NULL), count(*) FILTER (content ->> 'visib' IS NOT NULL)
               FROM read_parquet(?)"""
    without, with_it = duckdb.execute(query, [str(history / "snapshot.parquet")]).fetchone() or (0, 0)
    assert 0 < without < with_it


@full
def test_planes_looked_up_when_the_batch_runs_are_wrong_values(run_once: RunOnce) -> None:
    finding = the_finding(run_once("naive-flights-with-versions").verdict, "wrong-value")
    assert finding.total > 0 and finding.witnesses


def test_a_copied_run_gets_the_same_verdict(run_once: RunOnce, tmp_path: Path) -> None:
    result = run_once("naive-append")
    copy = shutil.copytree(result.run_dir, tmp_path / "elsewhere", symlinks=True)
    again = check(copy)
    assert (again.outcome, again.findings, again.faults) == (
        result.verdict.outcome,
        result.verdict.findings,
        result.verdict.faults,
    )


def test_a_restart_after_a_real_kill_needs_none_of_sparks_scripts(run_once: RunOnce) -> None:
    job = RunRecord.read(run_once("naive-append").run_dir).job
    assert job is not None
    assert [(jvm.start, jvm.tier, jvm.how) for jvm in job.jvms] == [(0, "real", "scripts"), (1, "real", "direct")]


def test_no_password_is_stored(run_once: RunOnce) -> None:
    run_dir = run_once("naive-append").run_dir
    text = (run_dir / "run.json").read_text() + (run_dir / "events.jsonl").read_text()
    assert "password" not in text.lower()


def test_the_history_has_every_sent_record(run_once: RunOnce) -> None:
    run_dir = run_once("effectively-once").run_dir
    query = "SELECT count(*), count(*) FILTER (status = 'acked') FROM read_parquet(?)"
    assert duckdb.execute(query, [str(run_dir / "history" / "sent.parquet")]).fetchone() == (60_000, 60_000)
    document = json.loads((run_dir / "run.json").read_text())
    assert document["drained"] is True and document["job"]["starts"] >= 4


def test_refusals_that_a_job_swallows_are_proved_by_the_services_errors(run_once: RunOnce) -> None:
    """The driver does not die, so its death cannot be the proof."""
    result = run_once("sink-refuses-swallowed")
    assert json.loads((result.run_dir / "run.json").read_text())["job"]["starts"] == 1
    evidence = {f.batch: " ".join(f.evidence) for f in result.verdict.faults}
    assert "connection refused" in evidence[2] and "42501 permission denied" in evidence[3] and "55P03" in evidence[4]
    assert all("hid the refusal" in text for text in evidence.values())
    finding = the_finding(result.verdict, "lost-write")
    assert {witness.batch for witness in finding.witnesses} <= {2, 3, 4}


@pytest.mark.parametrize("name", gate("leader-crash-acks-1", "unclean-election"))
def test_only_records_that_the_dead_leader_alone_acknowledged_are_lost(run_once: RunOnce, name: str) -> None:
    """They are of batch 2, in the partition whose leader died."""
    result = run_once(name)
    finding = the_finding(result.verdict, "lost-write")
    assert list(finding.attribution) == [source for source in finding.attribution if "batch 2" in source]
    history = result.run_dir / "history"
    ends = f"""SELECT end_offset - start_offset FROM '{history}/batches.parquet'
               WHERE batch = 2 AND topic = 'flights' ORDER BY "partition" """
    sizes = [size for (size,) in duckdb.execute(ends).fetchall()]
    assert 0 < finding.total <= max(sizes), "one output partition, which has the keys of one input partition"


@full
def test_without_unclean_election_the_partition_waits_for_its_leader(run_once: RunOnce) -> None:
    (fault,) = run_once("unclean-election-off").verdict.faults
    evidence = " ".join(fault.evidence)
    assert "no other broker was elected" in evidence and "came back with all these records" in evidence, fault.evidence


@full
def test_a_job_without_a_checkpoint_is_inconclusive_with_that_reason(run_once: RunOnce) -> None:
    before = set(Path(gettempdir()).glob("temporary-*"))
    verdict = run_once("foreign-no-checkpoint").verdict
    assert verdict.outcome is Outcome.INCONCLUSIVE, summary(verdict)
    assert len(verdict.reasons) == 1 and "no checkpointLocation" in verdict.reasons[0], summary(verdict)
    assert set(Path(gettempdir()).glob("temporary-*")) <= before, "Spark's temporary checkpoint was not removed"


@full
def test_of_two_queries_only_the_appending_one_has_duplicates(run_once: RunOnce) -> None:
    verdict = run_once("foreign-two-queries").verdict
    assert the_finding(verdict, "duplicate").output == "departures_table"
    assert verdict.counts["effects.last_seen"] == verdict.counts["expected.last_seen"] > 0


@full
def test_the_scenario_that_init_writes_for_a_job_and_a_sample_runs(
    run_once: RunOnce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's built-in Kafka sink, configured through the environment, fed with a sample of the flights."""
    fields = ("carrier", "flight", "tailnum", "origin", "dest", "dep_time", "sched_dep")  # the job copies these
    flights = (json.loads(record.value) for record in open_dataset("flights", {}, seed=0).records(0, 1_500))
    departed = [{field: row[field] for field in fields} for row in flights if row["dep_time"] is not None]
    (tmp_path / "flights.jsonl").write_text("\n".join(map(json.dumps, departed)))
    for file in ("kafka_sink.py", "kafka_login.py"):
        shutil.copy(folder() / "jobs/foreign" / file, tmp_path)
    monkeypatch.chdir(tmp_path)
    variables = {
        "KAFKA_BOOTSTRAP_SERVERS": "broker:9092",
        "FLIGHTS_TOPIC": "flights",
        "DEPARTURES_TOPIC": "departures",
        "CHECKPOINT": "/data/checkpoints/departures",
    }
    env = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    words = ["init", "--topic=flights", "--output-topic=departures", "--sample=flights.jsonl", *env]
    done = CliRunner().invoke(app, [*words, "--", "python", "kafka_sink.py"])
    assert done.exit_code == 0, done.output
    verdict = run_once(tmp_path / "kafka_sink.yaml").verdict
    assert verdict.outcome is Outcome.VIOLATED, summary(verdict)
    assert sorted(verdict.anomalies()) == ["duplicate"] and verdict.faults[0].hit, summary(verdict)


@full
def test_stragglers_are_dropped_by_the_logged_watermark_and_counted(run_once: RunOnce) -> None:
    """Every flight missing from the hours came too late, and the late ones are counted."""
    result = run_once("stragglers")
    history = result.run_dir / "history"
    departed = "SELECT count(*) FROM read_parquet(?) WHERE decode(value) ->> 'dep_time' IS NOT NULL"
    counted = "SELECT sum((content ->> 'flights')::BIGINT) FROM read_parquet(?)"
    sent = duckdb.execute(departed, [str(history / "input.parquet")]).fetchone() or (0,)
    kept = duckdb.execute(counted, [str(history / "snapshot.parquet")]).fetchone() or (0,)
    late = result.verdict.counts["late.flights"]
    assert 0 < sent[0] - kept[0] <= late, "some of the late flights had not departed"


@full
def test_duplicates_of_a_batch_without_input_are_found_in_that_batch(run_once: RunOnce) -> None:
    finding = the_finding(run_once("naive-orders-with-payments").verdict, "duplicate")
    assert list(finding.batches) == ["orders/4"] and finding.source == "batch replay"
    (fault,) = run_once("naive-orders-with-payments").verdict.faults
    assert fault.hit and fault.evidence[-1].startswith("batch 4 read no input, but wrote: table orders_paid")
