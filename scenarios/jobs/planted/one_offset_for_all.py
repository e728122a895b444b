"""Flights to Postgres: after a start, the job skips what is already in the table, by the largest offset that it holds.

Offsets count the records of one partition: in the others, unwritten rows may have smaller ones. ``--per-partition`` is the remedy.
"""

from __future__ import annotations

import psycopg
from common import copy_rows, flights_with_planes, job_parser, run, spark_session
from psycopg import sql
from pyspark.sql import DataFrame

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="departures")
parser.add_argument("--per-partition", action="store_true", help="compare offsets of the same partition only")
args = parser.parse_args()

spark = spark_session("one-offset-for-all")
table = sql.Identifier(args.table)
with psycopg.connect(args.postgres) as connection:
    newest = sql.SQL("SELECT src_partition, max(src_offset) FROM {} GROUP BY 1").format(table)
    written: dict[int, int] = dict(connection.execute(newest).fetchall())


def is_new(partition: int, offset: int) -> bool:
    last = written.get(partition, -1) if args.per_partition else max(written.values(), default=-1)
    return offset > last


def write(batch: DataFrame, _batch_id: int) -> None:
    # Only the first batch after a start can be a replay.
    rows = [row for row in batch.collect() if is_new(row.src_partition, row.src_offset)]
    written.clear()
    with psycopg.connect(args.postgres) as connection:
        copy_rows(connection, args.table, batch.columns, rows)


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
