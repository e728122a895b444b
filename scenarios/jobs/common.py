"""What the jobs of this folder share: a lean Spark session, and the flights joined with their planes."""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

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


def spark_session(name: str) -> SparkSession:
    """Two local cores. Each setting is there for order, for a fair time zone, or to start faster."""
    # Workers must run this very Python, not the first python3 on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.catalogImplementation", "in-memory")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        # One task must stay one topic partition, in the same order on every replay.
        .config("spark.sql.adaptive.streaming.stateless.enabled", "false")
        .getOrCreate()
    )


def read_topic(spark: SparkSession, kafka: str, topic: str) -> DataFrame:
    """The topic as a stream: committed records only, from the beginning, never silently skipping lost data."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "true")
        # Spark's default is read_uncommitted: it would process records of aborted transactions.
        .option("kafka.isolation.level", "read_committed")
        # The default long poll of 500 ms delays the first batch after each start by that much.
        .option("kafka.fetch.max.wait.ms", "10")
        # One request to a broker that does not answer costs 3 s, and a call outlasts several of them; with Java's
        # defaults (30 s and 60 s) a short partition would hold a batch for a minute.
        .option("kafka.request.timeout.ms", "3000")
        .option("kafka.default.api.timeout.ms", "30000")
        .option("kafka.reconnect.backoff.max.ms", "500")
        .load()
    )


def flights_with_planes(spark: SparkSession, kafka: str, topic: str, planes: str) -> DataFrame:
    """Flights that departed, with the maker and model of their plane where it is known. Columns: `COLUMNS`."""
    known_planes = f.broadcast(spark.read.parquet(planes).select("tailnum", "manufacturer", "model"))
    flight = f.from_json(f.col("value").cast("string"), FLIGHT)
    return (
        read_topic(spark, kafka, topic)
        .select(f.col("partition").alias("src_partition"), f.col("offset").alias("src_offset"), flight.alias("flight"))
        .select("src_partition", "src_offset", "flight.*")
        .where("dep_time IS NOT NULL")
        .join(known_planes, "tailnum", "left")
        .select(*COLUMNS)
    )
