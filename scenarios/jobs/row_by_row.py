"""Flights to Postgres, one row at a time, each under its source position: writing a row again changes nothing.

By default every INSERT commits by itself (autocommit), as in many clients: readers see a batch appear row by row, and if the
driver dies in the middle, half of it until another driver is up. ``--one-transaction`` is the remedy.
"""

from __future__ import annotations

import psycopg
from common import COLUMNS, flights_with_planes, insert_into, job_parser, run, spark_session
from pyspark.sql import DataFrame

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None)
parser.add_argument("--table", default="departures", help="table with a unique key on the source position")
parser.add_argument("--one-transaction", action="store_true", help="commit a batch as a whole")
args = parser.parse_args()

spark = spark_session("row-by-row")
insert = insert_into(args.table, COLUMNS, "ON CONFLICT (src_partition, src_offset) DO NOTHING")


def write(batch: DataFrame, _batch_id: int) -> None:
    rows = batch.collect()
    with psycopg.connect(args.postgres, autocommit=not args.one_transaction) as connection:
        for row in rows:
            connection.execute(insert, row)


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
