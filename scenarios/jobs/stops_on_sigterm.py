"""Flights to Postgres, one row at a time in one transaction per batch, by a job that ends in good order at SIGTERM.

``query.stop()`` waits until the function of the running batch has returned, and Spark then logs that batch as done. So what the
function does at SIGTERM decides. It finishes the batch; with ``--leave-early`` it commits what it has written so far and returns,
as many a loop does that looks at a flag to shut down quickly. The rows that are left are then never processed.
"""

from __future__ import annotations

import psycopg
from common import (
    COLUMNS,
    asked_to_end_at_sigterm,
    flights_with_planes,
    insert_into,
    job_parser,
    run_until_asked_to_end,
    spark_session,
)
from pyspark.sql import DataFrame

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None)
parser.add_argument("--table", default="departures", help="table with a unique key on the source position")
parser.add_argument("--leave-early", action="store_true", help="at SIGTERM leave the rest of the batch")
args = parser.parse_args()

asked_to_end = asked_to_end_at_sigterm()

spark = spark_session("stops-on-sigterm")
insert = insert_into(args.table, COLUMNS, "ON CONFLICT (src_partition, src_offset) DO NOTHING")


def write(batch: DataFrame, _batch_id: int) -> None:
    with psycopg.connect(args.postgres) as connection:
        for row in batch.collect():
            connection.execute(insert, row)
            if args.leave_early and asked_to_end.is_set():
                break


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run_until_asked_to_end(flights, write, args.checkpoint, asked_to_end)
