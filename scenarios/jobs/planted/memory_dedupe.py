"""Flights to Postgres: the job keeps the positions of all rows that it has written, in memory, and never writes one again."""

from __future__ import annotations

import psycopg
from common import copy_rows, flights_with_planes, job_parser, run, spark_session
from pyspark.sql import DataFrame

args = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="departures").parse_args()

spark = spark_session("memory-dedupe")
written: set[tuple[int, int]] = set()


def write(batch: DataFrame, _batch_id: int) -> None:
    new = [row for row in batch.collect() if (row.src_partition, row.src_offset) not in written]
    with psycopg.connect(args.postgres) as connection:
        copy_rows(connection, args.table, batch.columns, new)
    written.update((row.src_partition, row.src_offset) for row in new)


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
