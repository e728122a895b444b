"""Helpers that the jobs of this folder share: options, a small Spark session, the flights with their planes, and SQL."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from onceproof.sinks.postgres import PostgresAppend

FLIGHT = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT,
    arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT,
    hour INT, minute INT, time_hour TIMESTAMP, sched_dep TIMESTAMP
"""

COLUMNS = [
    *("src_partition", "src_offset"),
    *("carrier", "flight", "tailnum", "origin", "dest", "sched_dep", "dep_delay", "arr_delay", "distance"),
    *("manufacturer", "model"),
]


#: State that survives a restart: RocksDB with one changelog per batch, and version 2 of the state's checkpoint, in which the
#: commit log names the valid state files, so that a stale task cannot replace one of them (SPARK-49374).
STATEFUL = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # A batch without input, run because the watermark has moved, would race with the next chunk of the feed for the batch
    # number by which faults are placed. Without it the watermark takes effect in the next batch that has input.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


#: Options that several jobs have, and their help.
OPTIONS = {
    "topic": "input topic",
    "planes": "Parquet file of the planes",
    "postgres": "libpq URI; the password comes from PGPASSFILE",
    "table": "table to append to",
    "output": "topic to write to",
    "progress": "topic that keeps the sink's progress",
}


def job_parser(description: str | None, *, naive: bool = False, **defaults: str | None) -> argparse.ArgumentParser:
    """A parser of ``--kafka``, ``--checkpoint``, ``--naive`` (see `appending`) and the named `OPTIONS`.

    Each of these has its default; None: it must be given.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--kafka", required=True, help="bootstrap servers")
    parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")
    if naive:
        parser.add_argument(
            "--naive", action="store_true", help="append without remembering which batches were written"
        )
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", required=default is None, default=default, help=OPTIONS[name])
    return parser


def spark_session(name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Two local cores, or the cluster that the environment names. Each setting is there for order, for a fair time zone, or to
    start faster."""
    # Workers must run this very Python, not the first python3 on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if "MASTER" not in os.environ:
        builder = (
            builder.master("local[2]")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
        )
    return (
        builder.config("spark.ui.enabled", "false")
        .config("spark.sql.catalogImplementation", "in-memory")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        # One task must stay one topic partition, in the same order on every replay.
        .config("spark.sql.adaptive.streaming.stateless.enabled", "false")
        .config(map=dict(settings or {}))
        .getOrCreate()
    )


def run(
    rows: DataFrame,
    write: Callable[[DataFrame, int], None],
    checkpoint: str,
    mode: str = "append",
    *,
    available_now: bool = False,
) -> None:
    """Pass each batch of ``rows`` to ``write``, until the query ends; ``available_now``: until all that is there is processed."""
    query = rows.writeStream.foreachBatch(write).outputMode(mode).option("checkpointLocation", checkpoint)
    if available_now:
        query = query.trigger(availableNow=True)
    query.start().awaitTermination()


def asked_to_end_at_sigterm() -> threading.Event:
    """An event that SIGTERM sets, instead of ending the process."""
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    return asked


def run_until_asked_to_end(
    rows: DataFrame, write: Callable[[DataFrame, int], None], checkpoint: str, asked: threading.Event
) -> None:
    """Pass each batch to ``write``; call ``query.stop()`` once ``asked`` is set. Raises what else ends the query."""
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()
    while query.isActive and not asked.wait(0.2):
        pass
    if query.isActive:
        query.stop()
    else:
        query.awaitTermination()  # raises what ended it


def run_to_topic(
    records: DataFrame,
    kafka: str,
    topic: str,
    checkpoint: str,
    producer: Mapping[str, str] | None = None,
    **trigger: str,
) -> None:
    """Write ``records`` (columns key and value) to ``topic`` with Spark's Kafka sink, until the query ends."""
    options = {"kafka.bootstrap.servers": kafka, "topic": topic, "checkpointLocation": checkpoint}
    options |= {**spark_kafka_security(), **(producer or {})}
    query = records.writeStream.format("kafka").options(**options)
    if trigger:
        query = query.trigger(**trigger).outputMode("update" if "realTime" in trigger else "append")
    query.start().awaitTermination()


def copy_rows(connection: psycopg.Connection[Any], table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """COPY ``rows`` into ``table``, in the connection's transaction."""
    copy_in = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table), names(columns))
    with connection.cursor() as cursor, cursor.copy(copy_in) as copy:
        for row in rows:
            copy.write_row(row)


def insert_into(table: str, columns: Sequence[str], conflict: LiteralString = "") -> sql.Composed:
    """An INSERT with a placeholder for each column, and a last clause for rows that are there already."""
    values = sql.SQL(", ").join([sql.Placeholder()] * len(columns))
    return sql.SQL("INSERT INTO {} ({}) VALUES ({}) {}").format(
        sql.Identifier(table), names(columns), values, sql.SQL(conflict)
    )


def names(columns: Sequence[str]) -> sql.Composed:
    """The columns' names, quoted, with commas."""
    return sql.SQL(", ").join(map(sql.Identifier, columns))


def plain_append(postgres: str, table: str) -> Callable[[DataFrame, int], None]:
    """For ``foreachBatch``, as it is often written: insert, commit, and remember nothing."""

    def append(batch: DataFrame, _batch_id: int) -> None:
        rows = batch.collect()
        with psycopg.connect(postgres) as connection:
            copy_rows(connection, table, batch.columns, rows)

    return append


def plain_upsert(postgres: str, table: str, key: Sequence[str]) -> Callable[[DataFrame, int], None]:
    """For ``foreachBatch``: insert each row, or replace the one with its key. A replay writes the same again, and remembers nothing."""

    def upsert(batch: DataFrame, _batch_id: int) -> None:
        rows = batch.collect()
        newer = [
            sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in batch.columns if name not in key
        ]
        on_conflict = sql.SQL("ON CONFLICT ({}) DO UPDATE SET {}").format(names(key), sql.SQL(", ").join(newer))
        with psycopg.connect(postgres) as connection, connection.cursor() as cursor:
            cursor.executemany(insert_into(table, batch.columns) + on_conflict, rows)

    return upsert


def appending(args: argparse.Namespace, pipeline: str) -> Callable[[DataFrame, int], None]:
    """Appends to the table of ``args``, effectively once; with ``--naive`` without remembering which batches were written."""
    if args.naive:
        return plain_append(args.postgres, args.table)
    return PostgresAppend(args.postgres, args.table, pipeline=pipeline, checkpoint=args.checkpoint)


def kafka_security(variable: str = "KAFKA_PROPERTIES") -> dict[str, str]:
    """The cluster's login and TLS, from the properties file that a variable names; nothing on a cluster without them.

    ``KAFKA_PROPERTIES`` names settings of Java, ``LIBRDKAFKA_PROPERTIES`` those of librdkafka.
    """
    if not (path := os.environ.get(variable)):
        return {}
    with Path(path).open(encoding="utf-8") as file:
        settings = dict(line.rstrip("\n").split("=", 1) for line in file)
    if variable == "KAFKA_PROPERTIES":  # in Java's format a backslash escapes
        settings = {name: value.encode("ascii").decode("unicode_escape") for name, value in settings.items()}
    return settings


def spark_kafka_security() -> dict[str, str]:
    """`kafka_security` as options of Spark's Kafka source and sink."""
    return {f"kafka.{name}": value for name, value in kafka_security().items()}


def read_topic(
    spark: SparkSession, kafka: str, topic: str, isolation: str = "read_committed", **options: str
) -> DataFrame:
    """The topic as a stream: committed records only, from the beginning, never silently skipping lost data.

    ``options`` are further ones of Spark's Kafka source.
    """
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .options(**spark_kafka_security())
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "true")
        # Spark's default is read_uncommitted: it would process records of aborted transactions.
        .option("kafka.isolation.level", isolation)
        # The default long poll of 500 ms delays the first batch after each start by that much.
        .option("kafka.fetch.max.wait.ms", "10")
        # One request to a broker that does not answer costs 3 s, and a call outlasts several of them; with Java's
        # defaults (30 s and 60 s) a short partition would hold a batch for a minute.
        .option("kafka.request.timeout.ms", "3000")
        .option("kafka.default.api.timeout.ms", "30000")
        .option("kafka.reconnect.backoff.max.ms", "500")
        .options(**options)
        .load()
    )


def departures(
    spark: SparkSession, kafka: str, topic: str, isolation: str = "read_committed", **options: str
) -> DataFrame:
    """Flights that departed: the columns of `FLIGHT`, after ``src_partition`` and ``src_offset``. See `read_topic`."""
    flight = f.from_json(f.col("value").cast("string"), FLIGHT)
    return (
        read_topic(spark, kafka, topic, isolation, **options)
        .select(f.col("partition").alias("src_partition"), f.col("offset").alias("src_offset"), flight.alias("flight"))
        .select("src_partition", "src_offset", "flight.*")
        .where("dep_time IS NOT NULL")
    )


def flights_with_planes(
    spark: SparkSession, kafka: str, topic: str, planes: str, isolation: str = "read_committed", **options: str
) -> DataFrame:
    """Flights that departed, with the maker and model of their plane where it is known. Columns: `COLUMNS`. See `read_topic`."""
    known_planes = f.broadcast(spark.read.parquet(planes).select("tailnum", "manufacturer", "model"))
    flights = departures(spark, kafka, topic, isolation, **options)
    return flights.join(known_planes, "tailnum", "left").select(*COLUMNS)


def keyed_json(flights: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Records for Spark's Kafka sink: the tail number as the key, the columns as JSON with nulls."""
    value = f.to_json(f.struct(*columns), {"ignoreNullFields": "false"})
    return flights.select(f.col("tailnum").alias("key"), value.alias("value"))
