"""Reading back from a real broker and a real Postgres."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from onceproof.base.errors import HistoryError, ServiceFailed
from onceproof.base.timeline import Timeline
from onceproof.history.writer import HistoryWriter
from onceproof.scenario.stack import PostgresStack, StackSpec
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.fetch.components import ensure
from onceproof.stack.kafka.clients import producer_config
from onceproof.stack.kafka.fetched_log import copy_log
from onceproof.stack.kafka.requests import Connection
from onceproof.stack.processes.owner import Owner
from onceproof.stores.kafka.partition_log import PartitionLog
from onceproof.stores.kafka.read_back import TopicCounts, collect_topics
from onceproof.stores.kafka.rows import LogColumns
from onceproof.stores.postgres.read_back import collect_postgres

pytestmark = [pytest.mark.real, pytest.mark.services]


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


def read_back(stack: EmbeddedStack, topic: str, folder: Path) -> TopicCounts:
    timeline = Timeline(folder / "events.jsonl")
    with HistoryWriter(folder) as writer:
        _, back = collect_topics(stack.kafka, [], {"out": topic}, writer, timeline)
    timeline.close()
    return back["out"]


def transactional(stack: EmbeddedStack, name: str) -> Producer:
    producer = Producer({**producer_config(stack.kafka.harness_bootstrap), "transactional.id": name})
    producer.init_transactions(30.0)
    producer.begin_transaction()
    return producer


def send(producer: Producer, topic: str, *values: bytes | None, key: bytes | None = None, partition: int = 0) -> None:
    for value in values:
        producer.produce(topic, value, key, partition)
    assert producer.flush(30.0) == 0


def test_committed_aborted_and_open_records_are_distinguished(stack: EmbeddedStack, tmp_path: Path) -> None:
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
        found, outputs = collect_topics(stack.kafka, ["mixed"], {"out": "mixed"}, writer, timeline)
    back = outputs["out"]
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
        # After an open transaction, readers do not get even records outside of transactions.
        (9, '{"n":4}', None, "open"),
    ]
    assert (back.committed, back.aborted, back.open, back.ends) == (4, 1, 2, {0: 10, 1: 0})
    inputs = rows(tmp_path, "input")
    assert [r["visibility"] == "committed" for r in inputs] == [True, True, False, True, True, False, False]
    assert [r["key"] for r in inputs][:3] == [b"k", b"k", None]
    assert all(r["timestamp_ms"] > 0 for r in inputs)
    assert found["mixed"].ends == back.ends
    assert "log_unreadable" not in (tmp_path / "events.jsonl").read_text()
    check_what_the_log_adds(rows(tmp_path, "output"))
    check_what_the_log_adds(inputs)
    partitions = [{k: v for k, v in r.items() if k != "collected_ms"} for r in rows(tmp_path, "partitions")]
    assert partitions == [
        {"topic": "mixed", "partition": 0, "start_offset": 0, "stable_offset": 8, "end_offset": 10},
        {"topic": "mixed", "partition": 1, "start_offset": 0, "stable_offset": 0, "end_offset": 0},
    ]


def check_what_the_log_adds(records: list[dict[str, Any]]) -> None:
    ended = {r["offset"]: r["txn_end_offset"] for r in records}
    assert ended == {0: 2, 1: 2, 3: 4, 5: 7, 6: 7, 8: None, 9: None}
    assert all((r["txn_end_ms"] is None) == (r["txn_end_offset"] is None) for r in records)
    assert all(r["txn_end_ms"] >= r["timestamp_ms"] for r in records if r["txn_end_ms"] is not None)
    first = {r["producer_id"] for r in records if r["offset"] < 8}
    assert len(first) == 1 and None not in first
    assert records[5]["producer_id"] not in first and records[5]["producer_id"] is not None
    # The plain producer is not idempotent: its records have neither an id nor a sequence.
    assert (records[6]["producer_id"], records[6]["producer_epoch"], records[6]["sequence"]) == (None, None, None)
    # Sequences count a producer's records and start again with each epoch (KIP-890: one per transaction).
    by_epoch: dict[int, list[int]] = {}
    for record in records[:5]:
        by_epoch.setdefault(record["producer_epoch"], []).append(record["sequence"])
    assert [n for run in by_epoch.values() for n in run] in ([0, 1, 0, 0, 1], [0, 1, 2, 3, 4])


def test_a_topic_may_hold_only_aborted_records(stack: EmbeddedStack, tmp_path: Path) -> None:
    stack.kafka.create_topic("aborted", 1)
    producer = transactional(stack, "aborting")
    send(producer, "aborted", *[b"x"] * 3)
    producer.abort_transaction(30.0)
    back = read_back(stack, "aborted", tmp_path)
    assert (back.committed, back.aborted, back.open) == (0, 3, 0)


def test_several_partitions_with_many_batches_are_read(stack: EmbeddedStack, tmp_path: Path) -> None:
    stack.kafka.create_topic("many", 3)
    # Idempotent: a plain producer that resends a batch, for example to a newly elected leader, may change the order.
    settings = {**producer_config(stack.kafka.harness_bootstrap), "linger.ms": 20, "enable.idempotence": True}
    producer = Producer(settings)
    for number in range(15_000):
        producer.produce("many", str(number).encode(), partition=number % 3)
        producer.poll(0)
    assert producer.flush(30.0) == 0
    back = read_back(stack, "many", tmp_path)
    assert (back.committed, back.ends) == (15_000, {0: 5_000, 1: 5_000, 2: 5_000})
    by_partition = [[int(r["content"]) for r in rows(tmp_path, "output") if r["partition"] == p] for p in range(3)]
    assert by_partition == [list(range(p, 15_000, 3)) for p in range(3)]


def test_a_missing_topic_is_refused(stack: EmbeddedStack, tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="topic 'nowhere' cannot be read back"):
        read_back(stack, "nowhere", tmp_path)


def test_a_log_of_several_segments_with_compressed_batches_is_read(stack: EmbeddedStack, tmp_path: Path) -> None:
    stack.kafka.create_topic("rolled", 1, {"segment.bytes": "1048576"})
    settings = {**producer_config(stack.kafka.harness_bootstrap), "linger.ms": 50, "compression.type": "lz4"}
    producer = Producer({**settings, "transactional.id": "rolling"})
    producer.init_transactions(30.0)
    for number in range(4):
        producer.begin_transaction()
        for _ in range(300):
            producer.produce("rolled", os.urandom(2_000))
        assert producer.flush(30.0) == 0
        if number % 2:
            producer.abort_transaction(30.0)
        else:
            producer.commit_transaction(30.0)
    back = read_back(stack, "rolled", tmp_path)
    assert (back.committed, back.aborted) == (600, 600)
    assert len(list(stack.kafka.log_folders("rolled")[0].glob("*.log"))) > 1
    found = rows(tmp_path, "output")
    for number in range(4):
        part = found[300 * number : 300 * (number + 1)]
        assert {r["txn_end_offset"] for r in part} == {301 * number + 300}
        assert {r["visibility"] for r in part} == {"aborted" if number % 2 else "committed"}
        first = part[0]["sequence"]
        assert [r["sequence"] for r in part] == list(range(first, first + 300))


def test_a_log_fetched_from_its_leader_shows_what_its_files_show(stack: EmbeddedStack, tmp_path: Path) -> None:
    stack.kafka.create_topic("fetched", 1, {"segment.bytes": "1048576"})
    settings = {**producer_config(stack.kafka.harness_bootstrap), "linger.ms": 50, "transactional.id": "fetching"}
    producer = Producer(settings)
    producer.init_transactions(30.0)
    for number in range(6):
        producer.begin_transaction()
        for _ in range(400 if number else 1):
            producer.produce("fetched", os.urandom(4_000))
        assert producer.flush(30.0) == 0
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(30.0)
    stack.kafka.await_markers()
    host, _, port = stack.kafka.harness_bootstrap.partition(":")
    segment = tmp_path / "0.log"
    with Connection(host, int(port), timeout_s=10) as broker:
        assert copy_log(broker, "fetched", 0, 0, segment) == 2_007
        size = segment.stat().st_size
        with pytest.raises(ServiceFailed, match="fetched/0: the broker refused a Fetch with error 1"):
            copy_log(broker, "fetched", 0, 10_000, segment)  # OFFSET_OUT_OF_RANGE
        assert copy_log(broker, "fetched", 0, 2_007, segment) == 2_007 and segment.stat().st_size == size
    with (
        PartitionLog.open(stack.kafka.log_folders("fetched")[0]) as files,
        PartitionLog.open(tmp_path) as copied,
    ):
        seen = []
        for offset in range(2_007):
            batch = files.batch_of(offset)
            assert batch is not None and batch == copied.batch_of(offset)
            end = files.end_of(batch)
            assert end == copied.end_of(batch)
            seen.append(end and end.commit)
    assert seen.count(True) > 800 and seen.count(False) >= 1_200
    assert segment.stat().st_size > 8_000_000 > 10 * segment.stat().st_blocks * 512, "the records are holes"


def test_a_transaction_that_ends_after_its_log_was_fetched_is_found_when_the_copy_is_updated(
    stack: EmbeddedStack, tmp_path: Path
) -> None:
    stack.kafka.create_topic("late", 1)
    producer = transactional(stack, "late")
    send(producer, "late", b"{}")
    host, _, port = stack.kafka.harness_bootstrap.partition(":")
    segment = tmp_path / "0.log"
    with Connection(host, int(port), timeout_s=10) as broker:
        end = copy_log(broker, "late", 0, 0, segment)
        with PartitionLog.open(tmp_path) as log:
            batch = log.batch_of(0)
            assert batch is not None and log.end_of(batch) is None
            producer.commit_transaction(30.0)
            stack.kafka.await_markers()
            columns = LogColumns(log, "late/0", lambda: copy_log(broker, "late", 0, end, segment))
            (message,) = read(stack, "late", 1)
            assert columns.of([message], ["committed"])["txn_end_offset"] == [1]


def read(stack: EmbeddedStack, topic: str, count: int) -> list[Message]:
    consumer = Consumer({**stack.kafka.harness_client(), "group.id": "reads", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return consumer.consume(count, timeout=20)
    finally:
        consumer.close()


class WrongLogs:
    """A Kafka cluster that returns the log folders of another topic."""

    def __init__(self, stack: EmbeddedStack, other: str) -> None:
        self.harness_client = stack.kafka.harness_client
        self.await_markers = stack.kafka.await_markers
        self._folders = stack.kafka.log_folders(other)

    def log_folders(self, topic: str) -> dict[int, Path]:
        return self._folders

    def update_log(self, topic: str, partition: int, folder: Path) -> None:
        pass


def test_a_log_that_contradicts_the_readers_is_refused(stack: EmbeddedStack, tmp_path: Path) -> None:
    for topic, commits in (("kept", True), ("thrown", False)):
        stack.kafka.create_topic(topic, 1)
        producer = transactional(stack, topic)
        send(producer, topic, b"{}")
        (producer.commit_transaction if commits else producer.abort_transaction)(30.0)
    timeline = Timeline(tmp_path / "events.jsonl")
    message = "kept/0@0 is committed to readers, but aborted in the leader's log"
    with HistoryWriter(tmp_path) as writer, pytest.raises(HistoryError, match=message):
        collect_topics(WrongLogs(stack, "thrown"), [], {"out": "kept"}, writer, timeline)
    timeline.close()


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
        # The settings of the job's session must not affect what is read back.
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
    tables = {
        "changed#progress": "changed",
        "odd": '"odd Name"',
        "changed": "changed",
        "emptied": "public.emptied",
        "none": "never_made",
        "misspelt": "change",
    }
    with HistoryWriter(tmp_path) as writer:
        found = collect_postgres(stack.postgres, tables, writer)

    assert found["odd"].columns is not None
    assert found["odd"].columns["tz"] == "timestamp with time zone"
    assert found["odd"].generated == ["twice"]
    assert found["none"].columns is None
    assert "no table 'never_made'" in (found["none"].note or "")
    assert "did you mean 'changed'?" in (found["misspelt"].note or "")

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
        "twice": "2",
    }
    changes = rows(tmp_path, "output")
    assert [(r["output"], r["op"]) for r in changes if r["output"] in ("odd", "emptied")] == [
        ("odd", "insert"),
        ("emptied", "insert"),
        ("emptied", "truncate"),
        ("emptied", "insert"),
    ]
    for output in ("odd", "changed", "changed#progress"):
        snapshot = sorted(r["content"] for r in rows(tmp_path, "snapshot") if r["output"] == output)
        assert replay([r for r in changes if r["output"] == output]) == snapshot
    commits = {r["commit_order"]: r for r in rows(tmp_path, "commits")}
    (one_transaction,) = {r["commit_order"] for r in changes if r["output"] == "changed"}
    assert commits[one_transaction]["changes"] == 8
    assert commits[one_transaction]["xid"] == next(r["xid"] for r in changes if r["output"] == "changed")


def test_generated_columns_do_not_refuse_an_update(stack: EmbeddedStack, tmp_path: Path) -> None:
    """Postgres 18 refuses each UPDATE of a table that logs whole rows with a generated column that is not published."""
    assert stack.postgres is not None
    with pipeline(stack) as connection:
        connection.execute("CREATE TABLE stored (id int, twice int GENERATED ALWAYS AS (id * 2) STORED)")
        connection.execute(
            "CREATE TABLE virtual (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) VIRTUAL)"
        )
        connection.execute("CREATE TABLE later (id int PRIMARY KEY)")
        connection.execute("ALTER TABLE later ADD COLUMN twice int GENERATED ALWAYS AS (id * 2) VIRTUAL")
        for table in ("stored", "virtual", "later"):
            connection.execute(f"INSERT INTO {table} (id) VALUES (1), (2)".encode())
            connection.execute(f"UPDATE {table} SET id = 3 WHERE id = 2".encode())
            connection.execute(f"DELETE FROM {table} WHERE id = 1".encode())
    with HistoryWriter(tmp_path) as writer:
        found = collect_postgres(stack.postgres, {name: name for name in ("stored", "virtual", "later")}, writer)

    assert found["stored"].columns == {"id": "integer", "twice": "integer"}
    assert found["virtual"].columns == {"id": "integer", "n": "integer"}
    assert [found[name].generated for name in found] == [["twice"]] * 3
    snapshot = [(r["output"], json.loads(r["content"])) for r in rows(tmp_path, "snapshot")]
    assert ("stored", {"id": "3", "twice": "6"}) in snapshot
    assert ("virtual", {"id": "3", "n": None}) in snapshot
    changes = [r for r in rows(tmp_path, "output") if r["output"] == "stored"]
    assert replay(changes) == [r["content"] for r in rows(tmp_path, "snapshot") if r["output"] == "stored"]


def replay(changes: list[dict[str, Any]]) -> list[str]:
    present: list[str] = []
    for change in changes:
        if change["before"] is not None:
            present.remove(change["before"])
        if change["content"] is not None:
            present.append(change["content"])
    return sorted(present)


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
