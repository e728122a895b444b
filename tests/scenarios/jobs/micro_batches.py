"""Copies records to a Postgres table or to a topic, in micro-batches with a checkpoint like Spark's, but without Spark.

So tests of services, and of faults that strike them, need no Spark. Each batch is written in one transaction together with its end
offsets. The job never gives up a batch: on an error it exits, and replays the batch when it is started again.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import time
import traceback
import uuid
from collections.abc import Mapping
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from psycopg import sql

_BATCH = 100
"""Records per partition in a batch, at most."""
_PLANNED_S = 0.3
"""The job does not wait while its checkpoint is watched: a fault needs this time to strike between the plan and the writes."""
_ASK_S = 10.0
_COMMIT_S = 10.0
_READ_S = 15.0
_HANGS_S = 50.0
"""Longer than all of these together: a batch that takes so long hangs in a client. The job shows where, and exits."""

Offsets = Mapping[int, int]
"""partition -> offset"""

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", required=True, help="input topic")
parser.add_argument("--checkpoint", required=True)
parser.add_argument("--postgres", help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", default="copies", help="with --postgres: the table to write to")
parser.add_argument("--output", help="without --postgres: the topic to write to")


class Checkpoint:
    """``offsets/N`` and ``commits/N``, each created as a temporary file and renamed, as Spark does it."""

    def __init__(self, folder: Path, topic: str) -> None:
        self._folder, self._topic = folder, topic
        for log in ("offsets", "commits"):
            (folder / log).mkdir(parents=True, exist_ok=True)

    def last(self, log: str) -> int:
        """The number of the last batch in this log; -1 if there is none."""
        return max((int(path.name) for path in (self._folder / log).iterdir() if path.name.isdigit()), default=-1)

    def ends(self, batch: int) -> Offsets:
        """Where a batch ends; where the first one begins, for batch -1."""
        if batch < 0:
            return {}
        line = (self._folder / "offsets" / str(batch)).read_text().splitlines()[-1]
        return {int(partition): offset for partition, offset in json.loads(line)[self._topic].items()}

    def plan(self, batch: int, ends: Offsets) -> None:
        self._write("offsets", batch, "v1\n{}\n" + json.dumps({self._topic: ends}))

    def commit(self, batch: int) -> None:
        self._write("commits", batch, "v1\n{}")

    def _write(self, log: str, batch: int, text: str) -> None:
        draft = self._folder / log / f".{batch}.{uuid.uuid4()}.tmp"
        draft.write_text(text)
        draft.rename(self._folder / log / str(batch))


class ToPostgres:
    def __init__(self, uri: str, table: str) -> None:
        self._uri = uri
        self._insert = sql.SQL("INSERT INTO {} VALUES (%s, %s, %s)").format(sql.Identifier(table))

    def write(self, batch: int, records: list[Message], ends: Offsets) -> None:
        """Write the batch, unless the table of progress says that it was written."""
        with psycopg.connect(self._uri, connect_timeout=5) as connection:
            done = connection.execute("UPDATE progress SET batch = %s WHERE batch < %s", [batch, batch])
            if done.rowcount:
                rows = [(one.partition(), one.offset(), (one.value() or b"").decode()) for one in records]
                connection.cursor().executemany(self._insert, rows)


class ToTopic:
    def __init__(self, kafka: str, reader: Consumer, topic: str, output: str) -> None:
        self._reader, self._topic, self._output = reader, topic, output
        settings = {"bootstrap.servers": kafka, "transactional.id": "micro-batches", "transaction.timeout.ms": 20_000}
        self._producer = Producer(settings)
        self._producer.init_transactions(_ASK_S)

    def write(self, batch: int, records: list[Message], ends: Offsets) -> None:
        """Write the batch, unless the group has its end offsets, which the same transaction commits."""
        wanted = [TopicPartition(self._topic, partition, offset) for partition, offset in ends.items()]
        done = self._reader.committed([TopicPartition(self._topic, partition) for partition in ends], _ASK_S)
        if {one.partition: one.offset for one in done} == dict(ends):
            return
        self._producer.begin_transaction()
        for one in records:
            self._producer.produce(self._output, one.value(), one.key(), partition=one.partition())
        self._producer.send_offsets_to_transaction(wanted, self._reader.consumer_group_metadata(), _ASK_S)
        self._producer.commit_transaction(_COMMIT_S)


def read(reader: Consumer, topic: str, starts: Offsets, ends: Offsets) -> list[Message]:
    """The records of a batch."""
    reader.assign([TopicPartition(topic, partition, starts.get(partition, 0)) for partition in ends])
    wanted = sum(end - starts.get(partition, 0) for partition, end in ends.items())
    found: list[Message] = []
    give_up = time.monotonic() + _READ_S
    while len(found) < wanted:
        if time.monotonic() > give_up:
            raise TimeoutError(f"read {len(found)} of {wanted} records within {_READ_S} s")
        for one in reader.consume(wanted - len(found), 1):
            if one.error() is None and one.offset() < ends[one.partition()]:
                found.append(one)
    return sorted(found, key=lambda one: (one.partition(), one.offset()))


def available(reader: Consumer, topic: str, starts: Offsets) -> Offsets:
    """Where the next batch ends: at most `_BATCH` records after ``starts``."""
    partitions = reader.list_topics(topic, _ASK_S).topics[topic].partitions
    found = {}
    for partition in partitions:
        _, end = reader.get_watermark_offsets(TopicPartition(topic, partition), _ASK_S)
        found[partition] = min(end, starts.get(partition, 0) + _BATCH)
    return found


def main() -> None:
    args = parser.parse_args()
    checkpoint = Checkpoint(Path(args.checkpoint), args.topic)
    settings = {"bootstrap.servers": args.kafka, "group.id": "micro-batches", "enable.auto.commit": False}
    reader = Consumer(settings)
    sink = (
        ToPostgres(args.postgres, args.table) if args.postgres else ToTopic(args.kafka, reader, args.topic, args.output)
    )
    while True:
        faulthandler.dump_traceback_later(_HANGS_S, exit=True)
        batch = checkpoint.last("commits") + 1
        starts = checkpoint.ends(batch - 1)
        if checkpoint.last("offsets") < batch:
            ends = available(reader, args.topic, starts)
            if batch > 0 and ends == starts:  # batch 0 is planned even if empty: then the harness begins to feed
                time.sleep(0.1)
                continue
            checkpoint.plan(batch, ends)
            time.sleep(_PLANNED_S)
        ends = checkpoint.ends(batch)
        sink.write(batch, read(reader, args.topic, starts, ends), ends)
        checkpoint.commit(batch)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # at once: closing librdkafka's clients can wait for a broker that is away
