"""The collectors against a real broker and a real Postgres."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from onceproof.errors import HistoryError
from onceproof.events import Timeline
from onceproof.history.kafka import collect_input, collect_output
from onceproof.history.postgres import collect_postgres
from onceproof.history.writer import HistoryWriter
from onceproof.scenario.model import PostgresStack, StackSpec
from onceproof.stack.clients import producer_config
from onceproof.stack.components import ensure
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.processes import Owner

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStack]:
    folder = tmp_path_factory.mktemp("collect")
    (folder / "logs").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONCEPROOF_STATE_DIR", str(folder / "state"))
        timeline = Timeline(folder / "events.jsonl")
        with Owner() as owner:
            spec = StackSpec(postgres=PostgresStack())
            yield EmbeddedStack.start(spec, owner, folder, ensure(progress=False), timeline)
        timeline.close()


def rows(run_dir: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(run_dir / "history" / f"{table}.parquet").to_pylist()
    return found


def transactional(stack: EmbeddedStack, name: str) -> Producer:
    producer = Producer({**producer_config(stack.kafka.harness_bootstrap), "transactional.id": name})
    producer.init_transactions(30.0)
    producer.begin_transaction()
    return producer


def send(producer: Producer, topic: str, *values: bytes | None, key: bytes | None = None, partition: int = 0) -> None:
    for value in values:
        producer.produce(topic, value, key, partition)
    assert producer.flush(30.0) == 0


def test_visibility_of_committed_aborted_and_open_records(stack: EmbeddedStack, tmp_path: Path) -> None:
    stack.kafka.create_topic("mixed", 2)
    first = transactional(stack, "first")
    send(first, "mixed", b'{"n":0}', b'{"n":1}', key=b"k")
    first.commit_transaction(30.0)
    first.begin_transaction()
    send(first, "mixed", b'{"n":2}')
    first.abort_transaction(30.0)
    first.begin_transaction()
    send(first, "mixed", None, b"\xff\xfe")
    first.commit_transaction(30.0)
    hanging = transactional(stack, "hanging")
    send(hanging, "mixed", b'{"n":3}')
    plain = Producer(producer_config(stack.kafka.harness_bootstrap))
    send(plain, "mixed", b'{"n":4}')

    timeline = Timeline(tmp_path / "events.jsonl")
    with HistoryWriter(tmp_path) as writer:
        back = collect_output(stack.kafka, "out", "mixed", writer)
        found = collect_input(stack.kafka, ["mixed"], writer, timeline)
    hanging.abort_transaction(30.0)

    # Each transaction's marker uses up an offset: 2, 4 and 7 hold no record.
    seen = [(r["offset"], r["content"], r["raw"], r["visibility"]) for r in rows(tmp_path, "output")]
    assert seen == [
        (0, '{"n":0}', None, "committed"),
        (1, '{"n":1}', None, "committed"),
        (3, '{"n":2}', None, "aborted"),
        (5, None, None, "committed"),
        (6, None, b"\xff\xfe", "committed"),
        (8, '{"n":3}', None, "open"),
        # Behind an open transaction nobody sees even what belongs to none.
        (9, '{"n":4}', None, "open"),
    ]
    assert (back.committed, back.aborted, back.open, back.ends) == (4, 1, 2, {0: 10, 1: 0})
    inputs = rows(tmp_path, "input")
    assert [r["committed"] for r in inputs] == [True, True, False, True, True, False, False]
    assert [r["key"] for r in inputs][:3] == [b"k", b"k", None]
    assert all(r["timestamp_ms"] > 0 for r in inputs)
    assert found["mixed"].ends == back.ends


def test_topic_that_ends_in_nothing_but_aborted_records(stack: EmbeddedStack, tmp_path: Path) -> None:
    stack.kafka.create_topic("aborted", 1)
    producer = transactional(stack, "aborting")
    send(producer, "aborted", *[b"x"] * 3)
    producer.abort_transaction(30.0)
    with HistoryWriter(tmp_path) as writer:
        back = collect_output(stack.kafka, "out", "aborted", writer)
    assert (back.committed, back.aborted, back.open) == (0, 3, 0)


def test_more_than_one_batch_in_several_partitions(stack: EmbeddedStack, tmp_path: Path) -> None:
    stack.kafka.create_topic("many", 3)
    producer = Producer({**producer_config(stack.kafka.harness_bootstrap), "linger.ms": 20})
    for number in range(15_000):
        producer.produce("many", str(number).encode(), partition=number % 3)
        producer.poll(0)
    assert producer.flush(30.0) == 0
    with HistoryWriter(tmp_path) as writer:
        back = collect_output(stack.kafka, "out", "many", writer)
    assert (back.committed, back.ends) == (15_000, {0: 5_000, 1: 5_000, 2: 5_000})
    by_partition = [[int(r["content"]) for r in rows(tmp_path, "output") if r["partition"] == p] for p in range(3)]
    assert by_partition == [list(range(p, 15_000, 3)) for p in range(3)]


def test_topic_that_does_not_exist(stack: EmbeddedStack, tmp_path: Path) -> None:
    with HistoryWriter(tmp_path) as writer, pytest.raises(HistoryError, match="topic 'nowhere' cannot be read back"):
        collect_output(stack.kafka, "out", "nowhere", writer)


def pipeline(stack: EmbeddedStack) -> psycopg.Connection[Any]:
    assert stack.postgres is not None
    return psycopg.connect(stack.postgres.client_uri, passfile=str(stack.postgres.passfile), autocommit=True)


VALUES = """1, 'é"\\', true, 1.10, 0.1, '2013-01-01 10:15:00.5', '2013-01-01 10:15:00+02', '2013-01-01', '\\x00ff',
            '{"a": [1]}', ARRAY[1, 2], 'ab', NULL"""


def test_changes_replay_to_the_snapshot(stack: EmbeddedStack, tmp_path: Path) -> None:
    assert stack.postgres is not None
    with pipeline(stack) as connection:
        connection.execute(
            """CREATE TABLE "odd Name" (id int, t text, b boolean, n numeric, f double precision, ts timestamp,
               tz timestamptz, d date, raw bytea, j jsonb, a int[], c char(3), nothing text, twice int GENERATED ALWAYS AS (id * 2) STORED)"""
        )
        # The job's session writes as it likes; what is read back does not depend on it.
        connection.execute("SET timezone = 'Asia/Tokyo'; SET datestyle = 'German'")
        insert = f'INSERT INTO "odd Name" VALUES ({VALUES})'
        connection.execute(insert.encode())
        with connection.transaction(force_rollback=True):
            connection.execute(insert.encode())
        connection.execute("CREATE TABLE changed (id int PRIMARY KEY, big text)")
        with connection.transaction():
            connection.execute("INSERT INTO changed SELECT n, repeat(md5(n::text), 500) FROM generate_series(1, 5) n")
            connection.execute("UPDATE changed SET id = id + 100 WHERE id < 3")
            connection.execute("DELETE FROM changed WHERE id = 5")
        connection.execute("CREATE TABLE emptied (id int)")
        connection.execute("INSERT INTO emptied VALUES (1)")
        connection.execute("TRUNCATE emptied")
        connection.execute("INSERT INTO emptied VALUES (2)")
    tables = {"odd": '"odd Name"', "changed": "changed", "emptied": "public.emptied", "none": "never_made"}
    with HistoryWriter(tmp_path) as writer:
        found = collect_postgres(stack.postgres, tables, writer)

    assert found["odd"].columns is not None
    assert found["odd"].columns["tz"] == "timestamp with time zone"
    assert "twice" not in found["odd"].columns
    assert found["none"].columns is None
    assert "no table 'never_made'" in (found["none"].note or "")

    (odd,) = [r["content"] for r in rows(tmp_path, "snapshot") if r["output"] == "odd"]
    assert json.loads(odd) == {
        "id": "1",
        "t": 'é"\\',
        "b": "t",
        "n": "1.10",
        "f": "0.1",
        "ts": "2013-01-01 10:15:00.5",
        "tz": "2013-01-01 08:15:00+00",
        "d": "2013-01-01",
        "raw": "\\x00ff",
        "j": '{"a": [1]}',
        "a": "{1,2}",
        "c": "ab ",
        "nothing": None,
    }
    changes = rows(tmp_path, "output")
    assert [(r["output"], r["op"]) for r in changes if r["output"] != "changed"] == [
        ("odd", "insert"),
        ("emptied", "insert"),
        ("emptied", "truncate"),
        ("emptied", "insert"),
    ]
    for output in ("odd", "changed"):
        snapshot = sorted(r["content"] for r in rows(tmp_path, "snapshot") if r["output"] == output)
        assert replay([r for r in changes if r["output"] == output]) == snapshot
    commits = {r["commit_order"]: r for r in rows(tmp_path, "commits")}
    (one_transaction,) = {r["commit_order"] for r in changes if r["output"] == "changed"}
    assert commits[one_transaction]["changes"] == 8
    assert commits[one_transaction]["xid"] == next(r["xid"] for r in changes if r["output"] == "changed")


def replay(changes: list[dict[str, Any]]) -> list[str]:
    standing: list[str] = []
    for change in changes:
        if change["before"] is not None:
            standing.remove(change["before"])
        if change["content"] is not None:
            standing.append(change["content"])
    return sorted(standing)


def test_collecting_twice_gives_the_same(stack: EmbeddedStack, tmp_path: Path) -> None:
    assert stack.postgres is not None
    with pipeline(stack) as connection:
        connection.execute("CREATE TABLE large (id int)")
        connection.execute("INSERT INTO large SELECT generate_series(1, 5000)")
    collected = []
    for name in ("one", "two"):
        with HistoryWriter(tmp_path / name) as writer:
            assert collect_postgres(stack.postgres, {"large": "large"}, writer)["large"].rows == 5000
        collected.append((rows(tmp_path / name, "output"), rows(tmp_path / name, "snapshot")))
    assert collected[0] == collected[1]
    assert [r["offset"] for r in collected[0][0]] == list(range(5000))
