"""Flights to Postgres, written behind: foreachBatch keeps the batch and returns; it is written with the next one, or after five seconds.

So Spark computes the next batch instead of waiting for the database.
"""

from __future__ import annotations

import threading

import psycopg
from common import COLUMNS, copy_rows, flights_with_planes, job_parser, run, spark_session
from pyspark.sql import DataFrame, Row

args = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="departures").parse_args()
_AT_MOST_S = 5.0

spark = spark_session("write-behind")
kept: list[Row] = []
mine = threading.Lock()


def flush() -> None:
    with mine:
        if kept:
            with psycopg.connect(args.postgres) as connection:
                copy_rows(connection, args.table, COLUMNS, kept)
            kept.clear()


def write(batch: DataFrame, _batch_id: int) -> None:
    flush()
    with mine:
        kept.extend(batch.collect())
    threading.Timer(_AT_MOST_S, flush).start()


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
