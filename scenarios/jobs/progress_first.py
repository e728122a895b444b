"""Flights to Postgres with their offsets in the same database: progress is written first, then the rows.

By default each is its own transaction: a driver that dies between the two has recorded progress without its rows.
``--one-transaction`` is the remedy: the same statements in the same order, and one COMMIT.
"""

from __future__ import annotations

import psycopg
from common import copy_rows, flights_with_planes, job_parser, run, spark_session
from pyspark.sql import DataFrame

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="departures")
parser.add_argument("--one-transaction", action="store_true", help="progress and rows in one transaction")
args = parser.parse_args()

RECORD = """
    INSERT INTO positions (partition, end_offset) VALUES (%s, %s)
    ON CONFLICT (partition) DO UPDATE SET end_offset = EXCLUDED.end_offset
"""

spark = spark_session("progress-first")


def write(batch: DataFrame, _batch_id: int) -> None:
    rows = batch.collect()
    with psycopg.connect(args.postgres) as connection:
        done: dict[int, int] = dict(
            connection.execute("SELECT partition, end_offset FROM positions FOR UPDATE").fetchall()
        )
        new = [row for row in rows if row.src_offset >= done.get(row.src_partition, 0)]
        ends: dict[int, int] = {}
        for row in new:
            ends[row.src_partition] = max(ends.get(row.src_partition, 0), row.src_offset + 1)
        for position in ends.items():
            connection.execute(RECORD, position)
        if not args.one_transaction:
            connection.commit()
        copy_rows(connection, args.table, batch.columns, new)


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
