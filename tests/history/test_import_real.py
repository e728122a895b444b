"""`onceproof import` from a live topic and a live table, on the command line, as a user reads their own services."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from onceproof.base.timeline import Timeline
from onceproof.scenario.stack import PostgresStack, StackSpec
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.fetch.components import ensure
from onceproof.stack.kafka.clients import producer_config
from onceproof.stack.processes.owner import Owner

pytestmark = [pytest.mark.real, pytest.mark.services]

SCENARIO = """
input: [{topic: live-orders}]
outputs:
  seen: {topic: live-seen, identity: [id]}
  rows: {table: live_rows, identity: [id]}
oracle:
  kind: sql
  queries:
    seen: SELECT id, _partition, _offset, _key FROM "live-orders"
    rows: SELECT id, moment::TIMESTAMPTZ AS moment, _partition, _offset, _key FROM "live-orders"
"""
AT = "2013-01-01T05:30:00+01:00"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStack]:
    folder = tmp_path_factory.mktemp("import")
    (folder / "logs").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONCEPROOF_STATE_DIR", str(folder / "state"))
        timeline = Timeline(folder / "events.jsonl")
        with Owner() as owner:
            spec = StackSpec(postgres=PostgresStack())
            yield EmbeddedStack.start(spec, owner, folder, ensure(progress=False), timeline)
        timeline.close()


@pytest.fixture(scope="module")
def filled(stack: EmbeddedStack) -> EmbeddedStack:
    """Three orders and their effects, one of which was written a second time and aborted."""
    for topic in ("live-orders", "live-seen"):
        stack.kafka.create_topic(topic, 1)
    orders = Producer(producer_config(stack.kafka.harness_bootstrap))
    for number in range(3):
        orders.produce("live-orders", json.dumps({"id": number, "moment": AT}), f"k{number}")
    assert orders.flush(30.0) == 0
    seen = Producer({**producer_config(stack.kafka.harness_bootstrap), "transactional.id": "importing"})
    seen.init_transactions(30.0)
    for numbers, end in (
        ((0, 1), seen.commit_transaction),
        ((2,), seen.abort_transaction),
        ((2,), seen.commit_transaction),
    ):
        seen.begin_transaction()
        for number in numbers:
            seen.produce("live-seen", json.dumps({"id": number}))
        assert seen.flush(30.0) == 0
        end(30.0)
    assert stack.postgres is not None
    with psycopg.connect(stack.postgres.client_uri, passfile=str(stack.postgres.passfile)) as connection:
        connection.execute("CREATE TABLE live_rows (id int, moment timestamptz)")
        connection.execute("INSERT INTO live_rows SELECT n, %s FROM generate_series(0, 2) n", [AT])
    return stack


def onceproof(folder: Path, stack: EmbeddedStack, *argv: str) -> subprocess.CompletedProcess[str]:
    assert stack.postgres is not None
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PGPASSFILE": str(stack.postgres.passfile)}
    env["MY_DATABASE"] = stack.postgres.client_uri
    words = [sys.executable, "-m", "onceproof", *argv]
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


def imported(folder: Path, stack: EmbeddedStack, scenario: str = SCENARIO) -> subprocess.CompletedProcess[str]:
    (folder / "live.yaml").write_text(scenario)
    live = ["--kafka", stack.kafka.harness_bootstrap, "--postgres-env", "MY_DATABASE"]
    return onceproof(folder, stack, "import", "--scenario", "live.yaml", *live, "--json")


def test_a_live_topic_and_a_live_table_are_imported(filled: EmbeddedStack, tmp_path: Path) -> None:
    done = imported(tmp_path, filled)
    assert done.returncode == 0, done.stderr
    run = Path(json.loads(done.stdout)["run"])
    seen = pq.read_table(run / "history" / "output.parquet").to_pylist()
    assert [r["visibility"] for r in seen] == ["committed", "committed", "aborted", "committed"]
    assert [r["key"] for r in pq.read_table(run / "history" / "input.parquet").to_pylist()] == [b"k0", b"k1", b"k2"]
    assert pq.read_metadata(run / "history" / "commits.parquet").num_rows == 0
    judged = onceproof(tmp_path, filled, "check", str(run), "--json")
    assert judged.returncode == 0, judged.stderr
    result = json.loads(judged.stdout)
    assert "no fault was exercised" in json.dumps(result)


def test_a_missing_row_and_an_extra_row_are_found(filled: EmbeddedStack, tmp_path: Path) -> None:
    assert filled.postgres is not None
    uri, passfile = filled.postgres.client_uri, str(filled.postgres.passfile)
    with psycopg.connect(uri, passfile=passfile) as connection:
        connection.execute("CREATE TABLE wrong_rows AS SELECT * FROM live_rows WHERE id > 0 UNION ALL SELECT 1, now()")
    done = imported(tmp_path, filled, SCENARIO.replace("table: live_rows", "table: wrong_rows"))
    assert done.returncode == 0, done.stderr
    judged = onceproof(tmp_path, filled, "check", json.loads(done.stdout)["run"], "--json")
    assert judged.returncode == 1, judged.stdout


def test_a_failed_import_leaves_no_directory(filled: EmbeddedStack, tmp_path: Path) -> None:
    for scenario, message in (
        (
            SCENARIO.replace("table: live_rows", "table: no_rows"),
            "output 'rows' cannot be read: there is no table 'no_rows'",
        ),
        (SCENARIO.replace("topic: live-seen", "topic: no-topic"), "topic 'no-topic' cannot be read back"),
    ):
        done = imported(tmp_path, filled, scenario)
        assert done.returncode == 4, done.stdout
        assert message in done.stderr
        assert not (tmp_path / "onceproof-runs").exists()


@pytest.mark.full
def test_a_service_that_does_not_answer_is_reported(filled: EmbeddedStack, tmp_path: Path) -> None:
    (tmp_path / "live.yaml").write_text(SCENARIO)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 1}\n')
    here = ["import", "--scenario", "live.yaml", "--input", f"live-orders={rows}"]
    away = onceproof(tmp_path, filled, *here, "--output", f"rows={rows}", "--kafka", "127.0.0.1:9")
    assert away.returncode == 4
    assert "Kafka at 127.0.0.1:9 cannot be read" in away.stderr and "Traceback" not in away.stderr
    wrong = "MY_WRONG_DATABASE"
    assert (
        f"environment variable {wrong!r} is not set"
        in onceproof(tmp_path, filled, *here, "--output", f"seen={rows}", "--postgres-env", wrong).stderr
    )
    assert not (tmp_path / "onceproof-runs").exists()
