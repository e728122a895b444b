"""Flights to Postgres, in few large transactions: a batch goes into a buffer, which another thread empties every second."""

from __future__ import annotations

import threading

import psycopg
from common import COLUMNS, copy_rows, flights_with_planes, job_parser, run, spark_session
from pyspark.sql import DataFrame, Row

args = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="departures").parse_args()
_EVERY_S = 1.0

spark = spark_session("write-behind")
buffer: list[Row] = []
filled = threading.Lock()
ending = threading.Event()


def write(batch: DataFrame, _batch_id: int) -> None:
    rows = batch.collect()
    with filled:
        buffer.extend(rows)


def flush_now_and_then() -> None:
    while not ending.wait(_EVERY_S):
        with filled:
            rows = list(buffer)
            buffer.clear()
        if rows:
            with psycopg.connect(args.postgres) as connection:
                copy_rows(connection, args.table, COLUMNS, rows)


threading.Thread(target=flush_now_and_then, daemon=True).start()
flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
