"""`onceproof sinks progress` on what real sinks have recorded, and what the sinks do after a repair. No Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from onceproof.cli.app import app
from onceproof.cli.sinks import progress as command
from onceproof.sinks.recorded import PostgresProgress
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.kafka.clients import producer_config

from .bench import Bench, KafkaTarget, PostgresTarget
from .partitioned import PartitionedTarget, checkpoint_of, rows_of, sink_of

pytestmark = [pytest.mark.real, pytest.mark.services]

QUERY = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def services(stack: EmbeddedStack, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedStack]:
    assert stack.postgres is not None
    monkeypatch.setenv("PGPASSFILE", str(stack.postgres.passfile))
    monkeypatch.setenv("DB", stack.postgres.client_uri)
    yield stack


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["sinks", "progress", *words])
    assert done.exit_code == code, done.output
    return done.output


def of_postgres(target: PostgresTarget) -> list[str]:
    return ["--postgres-env", "DB", "--table", f"{target.name}_progress"]


def of_kafka(target: KafkaTarget) -> list[str]:
    return ["--kafka", target.broker.client_bootstrap, "--topic", f"{target.topic}-progress"]


def test_the_progress_of_all_pipelines_of_a_table_is_shown(services: EmbeddedStack, tmp_path: Path) -> None:
    target = PostgresTarget(services)
    bench, words = Bench(target, tmp_path), of_postgres(target)
    checkpoint = bench.checkpoint(5, 8)
    for batch in (0, 1):
        bench.write(checkpoint, batch)
    target.pipeline = "fresh"
    target.recipe(checkpoint).make()
    lines = run(*words).splitlines()
    assert lines[0] == f"table {target.name}_progress"
    assert [line.split() for line in lines[1:]] == [
        ["PIPELINE", "EPOCH", "BATCH", "QUERY", "WRITTEN", "UP", "TO"],
        ["fresh", "1", "-", "-", "nothing", "yet"],
        [target.name, "2", "1", QUERY, "t/0:", "8"],
    ]
    found = json.loads(run(*words, "--pipeline", target.name, "--json"))
    assert found == {
        "progress": [
            {
                "store": "postgres",
                "table": f"{target.name}_progress",
                "pipeline": target.name,
                "epoch": 2,
                "query_id": QUERY,
                "batch_id": 1,
                "offsets": {"t": {"0": 8}},
            }
        ]
    }


def test_the_progress_of_all_pipelines_of_a_topic_is_shown(services: EmbeddedStack, tmp_path: Path) -> None:
    target = KafkaTarget(services)
    bench, words = Bench(target, tmp_path), of_kafka(target)
    assert run(*words).splitlines()[1:] == ["no pipeline"]
    checkpoint = bench.checkpoint(5, 8)
    for name, batch in ((target.topic, 0), ("other", 0), (target.topic, 1)):
        target.pipeline = name
        bench.write(checkpoint, batch)
    assert [line.split() for line in run(*words).splitlines()[2:]] == [
        ["other", "-", "0", QUERY, "t/0:", "5"],
        [target.topic, "-", "1", QUERY, "t/0:", "8"],
    ]
    unknown = run(*words, "--pipeline", "nobody", code=2)
    assert "no progress of pipeline 'nobody'" in unknown and f"'other', '{target.topic}'" in unknown


def test_the_progress_of_each_source_partition_is_shown_and_repaired(services: EmbeddedStack, tmp_path: Path) -> None:
    """It is in the partition of its number. The sink then skips or writes by the repaired progress."""
    target = PartitionedTarget(services)
    bench, words = Bench(target, tmp_path), of_kafka(target)
    sink = sink_of(bench, checkpoint_of(bench, {"0": 5, "1": 3}, {"0": 5, "1": 6}))
    sink.write(rows_of((0, 4), (1, 2)), 0)
    found = json.loads(run(*words, "--json"))
    lane = f"{target.topic}/t/1"
    assert [one["pipeline"] for one in found["progress"]] == [f"{target.topic}/t/0", lane]
    assert [one["offsets"] for one in found["progress"]] == [{"t": {"0": 5}}, {"t": {"1": 3}}]
    run(*words, "--pipeline", lane, "--set", "t/1=6", "--set", "batch=1", "--apply")
    (changed,) = json.loads(run(*words, "--pipeline", lane, "--json"))["progress"]
    assert changed["offsets"] == {"t": {"1": 6}}
    assert not sink.write(rows_of((1, 4)), 1)
    assert sorted(target.offsets()) == [4, 102]


@pytest.mark.parametrize(("kind", "words_of"), [(PostgresTarget, of_postgres), (KafkaTarget, of_kafka)])
def test_a_repair_writes_nothing_without_apply(
    kind: Callable[..., Any], words_of: Callable[..., list[str]], services: EmbeddedStack, tmp_path: Path
) -> None:
    """Somebody wrote batch 1 by hand, and now records it as written: it is skipped. Set back, it is written again."""
    target = kind(services)
    bench = Bench(target, tmp_path)
    checkpoint = bench.checkpoint(5, 8, 9)
    bench.write(checkpoint, 0)
    running = target.recipe(checkpoint).make()
    words = [*words_of(target), "--pipeline", target.pipeline]
    forward = [*words, "--set", "batch=1", "--set", "t/0=8"]
    before = run(*words)
    shown = run(*forward)
    assert "t/0: the records 5 to 7 count as written, and are skipped" in shown
    assert "nothing was written: add --apply" in shown
    assert run(*words) == before
    applied = json.loads(run(*forward, "--apply", "--json"))
    assert applied["applied"] and applied["after"]["offsets"] == {"t": {"0": 8}} and applied["after"]["batch_id"] == 1
    if target.fences:
        bench.refused("Fenced", lambda: running.write(target.rows(checkpoint, 1), 1))
    assert not bench.write(checkpoint, 1)
    assert bench.write(checkpoint, 2)
    bench.shows(*range(5), 8)
    back = run(*words, "--set", "batch=1", "--set", "t/0=8", "--set", "query=another", "--apply")
    assert "t/0: the records 8 to 8 count as not written" in back and back.rstrip().endswith("written")
    assert bench.write(checkpoint, 2)
    assert target.offsets() == [*range(5), 8, 8]


def test_all_of_a_fresh_pipeline_must_be_given(services: EmbeddedStack, tmp_path: Path) -> None:
    target = PostgresTarget(services)
    bench = Bench(target, tmp_path)
    checkpoint = bench.checkpoint(5, 8)
    target.recipe(checkpoint).make()
    words = [*of_postgres(target), "--pipeline", target.pipeline, "--set", "batch=0", "--apply"]
    assert "add --set query=ID, --set TOPIC/PARTITION=OFFSET" in run(*words, code=2)
    run(*words, "--set", f"query={QUERY}", "--set", "t/0=5")
    assert not bench.write(checkpoint, 0)
    assert bench.write(checkpoint, 1)


def test_services_that_refuse_are_named_with_the_fix(
    services: EmbeddedStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = PostgresTarget(services)
    bench = Bench(target, tmp_path)
    bench.write(bench.checkpoint(5), 0)
    words = [*of_postgres(target), "--pipeline", target.pipeline, "--set", "batch=1", "--apply"]
    missing = run("--postgres-env", "DB", "--table", "nowhere.progress", code=2)
    assert "nowhere.progress is not a table of progress" in missing and "name the sink's progress_table" in missing
    assert "is not a table of progress" in run("--postgres-env", "DB", "--table", target.name, code=2)
    assert "no progress of pipeline 'x'" in run(*of_postgres(target), "--pipeline", "x", code=2)
    uri = target.server.client_uri
    monkeypatch.setenv("DB", f"{uri}?options=-c%20default_transaction_read_only%3Don")
    assert "connect to the primary" in run(*words, code=4)
    monkeypatch.setenv("DB", uri.replace("@", ":confidential@"))
    refused = run(*words, code=4)
    assert "cannot be read" in refused and "confidential" not in refused
    monkeypatch.setenv("DB", uri)
    monkeypatch.setattr(command, "PostgresProgress", partial(PostgresProgress, timeout_s=1))
    with psycopg.connect(uri) as holder:
        holder.execute(f"SELECT 1 FROM {target.name}_progress FOR UPDATE".encode())
        assert "a driver is writing a batch" in run(*words, code=4)


def test_a_topic_that_is_not_one_of_progress_is_refused(services: EmbeddedStack, tmp_path: Path) -> None:
    target = KafkaTarget(services)
    bench = Bench(target, tmp_path)
    bench.write(bench.checkpoint(5), 0)
    producer = Producer(producer_config(target.broker.client_bootstrap))
    producer.produce(f"{target.topic}-progress", key=b"stray", value=b"no progress", partition=0)
    assert producer.flush(20) == 0
    assert "the record of b'stray' is not progress: b'no progress'" in run(*of_kafka(target), code=4)
    assert f"{target.topic}" in run(*of_kafka(target), "--pipeline", target.pipeline)
    missing = run("--kafka", target.broker.client_bootstrap, "--topic", "no-such-topic", code=4)
    assert "no-such-topic/0" in missing and "the topic must exist" in missing
