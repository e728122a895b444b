"""What does effectively-once cost? Each sink against the same writes at-least-once, batch by batch in turn, in one session.

``python benchmarks/sinks.py`` starts a broker and Postgres and writes batches of 1 KB records without Spark. A ratio of 1 means that
the progress, the lock and the new connection or producer per batch cost nothing. Also prints how large a share of a bare COPY
each Postgres sink reaches, and how much memory a large batch takes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pyarrow as pa
from confluent_kafka import Producer
from measure import machine

from onceproof.base.timeline import Timeline
from onceproof.scenario.stack import PostgresStack, StackSpec
from onceproof.sinks.kafka import KafkaTransactional
from onceproof.sinks.postgres import PostgresAppend, PostgresUpsert
from onceproof.sinks.postgres_copy import copy_rows
from onceproof.sinks.postgres_outbox import PostgresOutbox
from onceproof.sinks.postgres_staged import PostgresStaged
from onceproof.sinks.tasks import formats
from onceproof.sinks.tasks.kafka import KafkaPartitioned
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.fetch.components import ensure
from onceproof.stack.kafka.clients import producer_config
from onceproof.stack.processes.owner import Owner

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--batches", type=int, default=15, help="batches of each kind (default: 15)")
parser.add_argument("--only", metavar="TEXT", default="", help="only sinks with this text in their name")
parser.add_argument("--rows", type=int, default=10_000, help="rows of a batch (default: 10,000)")

_QUERY = "11111111-2222-3333-4444-555555555555"
_METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'


def checkpoint(folder: Path, batches: int, rows: int) -> Path:
    """The files of a checkpoint in which every batch has ``rows`` records of topic ``t``."""
    (folder / "offsets").mkdir(parents=True)
    (folder / "sources" / "0").mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": _QUERY}))
    (folder / "sources" / "0" / "0").write_bytes(b'\0v1\n{"t":{"0":0}}')
    for batch in range(batches):
        ends = json.dumps({"t": {"0": (batch + 1) * rows}})
        (folder / "offsets" / str(batch)).write_text(f"v1\n{_METADATA}\n{ends}")
    return folder


def rows_of(batch: int, rows: int) -> pa.Table:
    first = batch * rows
    return pa.table(
        {
            "id": pa.array(range(first, first + rows), pa.int64()),
            "key": pa.array([f"k{number % 1000}" for number in range(rows)]),
            "payload": pa.array([f"{number:08d}" * 120 for number in range(rows)]),
        }
    )


class Bench:
    def __init__(self, stack: EmbeddedStack, folder: Path, batches: int, rows: int) -> None:
        assert stack.postgres is not None
        self.server, self.kafka, self.folder, self.batches, self.rows = (
            stack.postgres,
            stack.kafka,
            folder,
            batches,
            rows,
        )

    def table(self, key: str = "") -> str:
        name = f"t{uuid.uuid4().hex[:8]}"
        with psycopg.connect(self.server.client_uri) as connection:
            connection.execute(f"CREATE TABLE {name} (id bigint {key}, key text, payload text)".encode())
        return name

    def own(self) -> dict[str, Any]:
        where = checkpoint(self.folder / uuid.uuid4().hex[:8], self.batches, self.rows)
        return {"pipeline": where.name, "checkpoint": where}

    def naive_copy(self) -> Callable[[pa.Table, int], object]:
        table, connection = self.table(), psycopg.connect(self.server.client_uri)

        def write(rows: pa.Table, _batch: int) -> None:
            copy_rows(connection, psycopg.sql.Identifier(table), rows.schema, rows.to_batches(max_chunksize=1024))
            connection.commit()

        return write

    def naive_upsert(self) -> Callable[[pa.Table, int], object]:
        table, connection = self.table("PRIMARY KEY"), psycopg.connect(self.server.client_uri)
        insert = (
            f"INSERT INTO {table} (id, key, payload) VALUES (%s, %s, %s)"  # noqa: S608  # a name made here
            " ON CONFLICT (id) DO UPDATE SET (key, payload) = (EXCLUDED.key, EXCLUDED.payload)"
        ).encode()

        def write(rows: pa.Table, _batch: int) -> None:
            with connection.cursor() as cursor:
                cursor.executemany(insert, list(zip(*(column.to_pylist() for column in rows.columns), strict=True)))
            connection.commit()

        return write

    def naive_kafka(self) -> Callable[[pa.Table, int], object]:
        topic = f"t{uuid.uuid4().hex[:8]}"
        self.kafka.create_topic(topic, 1)
        producer = Producer({**producer_config(self.kafka.client_bootstrap), "linger.ms": 5})

        def write(rows: pa.Table, _batch: int) -> None:
            for row in rows.to_pylist():
                value = json.dumps(row, separators=(",", ":")).encode()
                while True:
                    try:
                        producer.produce(topic, value=value, key=row["key"].encode())
                        break
                    except BufferError:
                        producer.poll(0.1)
            assert producer.flush(60) == 0

        return write

    def naive_both(self) -> Callable[[pa.Table, int], object]:
        to_table, to_topic = self.naive_copy(), self.naive_kafka()

        def write(rows: pa.Table, batch: int) -> None:
            to_table(rows, batch)
            to_topic(rows, batch)

        return write

    def outbox_sink(self) -> PostgresOutbox:
        topic = f"t{uuid.uuid4().hex[:8]}"
        for name in (topic, f"{topic}-progress"):
            self.kafka.create_topic(name, 1)
        own: dict[str, Any] = {"progress_topic": f"{topic}-progress", "key": "key", **self.own()}
        return PostgresOutbox(self.server.client_uri, self.table(), self.kafka.client_bootstrap, topic, **own)

    def refusing(self) -> str:
        """A table that refuses one row of each batch."""
        table = self.table()
        with psycopg.connect(self.server.client_uri) as connection:
            connection.execute(f"ALTER TABLE {table} ADD CHECK (id % {self.rows} <> 1)".encode())
        return table

    def kafka_sink(self, *, letters: bool = False) -> KafkaTransactional:
        topic = f"t{uuid.uuid4().hex[:8]}"
        for name in (topic, f"{topic}-progress", f"{topic}-dead"):
            self.kafka.create_topic(name, 1)
        own: dict[str, Any] = {"progress_topic": f"{topic}-progress", "key": "key"}
        own["dead_letters"] = f"{topic}-dead" if letters else None
        return KafkaTransactional(self.kafka.client_bootstrap, topic, **own, **self.own())

    def kafka_tasks(self) -> Callable[[pa.Table, int], object]:
        """Each batch is the rows of one source partition, as one task writes them."""
        topic = f"t{uuid.uuid4().hex[:8]}"
        for name in (topic, f"{topic}-progress"):
            self.kafka.create_topic(name, 1)
        own: dict[str, Any] = {"progress_topic": f"{topic}-progress", "key": "key", "value": ["id", "key", "payload"]}
        sink = KafkaPartitioned(self.kafka.client_bootstrap, topic, source=["partition", "id"], **own, **self.own())

        def write(rows: pa.Table, batch: int) -> None:
            sink.write(rows.append_column("partition", pa.repeat(0, rows.num_rows)), batch)

        return write

    def by_format(self, kind: str, options: dict[str, str]) -> Callable[[pa.Table, int], object]:
        """As Spark calls it, with one task, in one process. Spark makes the writer twice for each batch."""
        own = self.own()
        made = {**options, "pipeline": own["pipeline"], "checkpointLocation": str(own["checkpoint"])}

        def write(rows: pa.Table, batch: int) -> None:
            planned, committing = (getattr(formats, kind)(made, rows.column_names) for _ in range(2))
            committing.commit([planned.write(rows.to_batches(max_chunksize=10_000), batch, "run")], batch)

        return write

    def pairs(self) -> dict[str, tuple[Callable[[pa.Table, int], object], Callable[[pa.Table, int], object]]]:
        """Sink -> how it writes a batch at-least-once, and effectively once. For dead letters: without them, and with them."""
        uri = self.server.client_uri
        append = PostgresAppend(uri, self.table(), **self.own())
        upsert = PostgresUpsert(uri, self.table("PRIMARY KEY"), key=["id"], **self.own())
        staged = PostgresStaged(uri, self.table(), **self.own())
        return {
            "postgres append": (self.naive_copy(), append.write),
            "postgres upsert": (self.naive_upsert(), upsert.write),
            "postgres staged, one task": (self.naive_copy(), staged.write),
            "postgres, staged or by a format": (
                PostgresStaged(uri, self.table(), **self.own()).write,
                self.by_format("PostgresWriting", {"conninfo": uri, "table": self.table()}),
            ),
            "kafka": (self.naive_kafka(), self.kafka_sink().write),
            "kafka from tasks, one task": (self.naive_kafka(), self.kafka_tasks()),
            "kafka, by the driver or by one task": (self.kafka_sink().write, self.kafka_tasks()),
            "outbox": (self.naive_both(), self.outbox_sink().write),
            "dead letters, none": (
                PostgresAppend(uri, self.table(), **self.own()).write,
                PostgresAppend(uri, self.table(), dead_letters="dead", **self.own()).write,
            ),
            "dead letters, one per batch": (
                PostgresAppend(uri, self.table(), **self.own()).write,
                PostgresAppend(uri, self.refusing(), dead_letters="dead", **self.own()).write,
            ),
            "dead letters, staged, none": (
                PostgresStaged(uri, self.table(), **self.own()).write,
                PostgresStaged(uri, self.table(), dead_letters="dead", **self.own()).write,
            ),
            "dead letters, staged, one per batch": (
                PostgresStaged(uri, self.table(), **self.own()).write,
                PostgresStaged(uri, self.refusing(), dead_letters="dead", **self.own()).write,
            ),
            "dead letters, kafka, none": (self.kafka_sink().write, self.kafka_sink(letters=True).write),
        }


def compare(
    name: str, naive: Callable[[pa.Table, int], object], sink: Callable[[pa.Table, int], object], bench: Bench
) -> None:
    taken: tuple[list[float], list[float]] = ([], [])
    for batch in range(bench.batches):
        rows = rows_of(batch, bench.rows)
        order = (0, 1) if batch % 2 else (1, 0)
        for which in order:
            began = time.perf_counter()
            (naive, sink)[which](rows, batch)
            taken[which].append(time.perf_counter() - began)
    # The first batches warm up caches and connections.
    once, twice = (statistics.median(times[2:]) for times in reversed(taken))
    rss = psutil.Process().memory_info().rss // 2**20
    print(
        f"{name:<35} at-least-once {bench.rows / twice:>9,.0f} rows/s   effectively-once {bench.rows / once:>9,.0f} rows/s"
        f"   ratio {twice / once:.2f}   {1000 * once:.0f} ms a batch   this process {rss} MiB",
        flush=True,
    )


def main() -> None:
    args = parser.parse_args()
    print(f"{machine()}; {args.batches} batches of {args.rows:,} rows of 1 KB, medians", flush=True)
    with tempfile.TemporaryDirectory(prefix="onceproof-benchmark-") as scratch, Owner() as owner:
        folder = Path(scratch)
        (folder / "logs").mkdir()
        timeline = Timeline(folder / "events.jsonl")
        spec = StackSpec(postgres=PostgresStack())
        stack = EmbeddedStack.start(spec, owner, folder, ensure(spark=False), timeline)
        assert stack.postgres is not None
        os.environ["PGPASSFILE"] = str(stack.postgres.passfile)
        bench = Bench(stack, folder, args.batches, args.rows)
        for name, (naive, sink) in bench.pairs().items():
            if args.only in name:
                compare(name, naive, sink, bench)
        timeline.close()


if __name__ == "__main__":
    main()
