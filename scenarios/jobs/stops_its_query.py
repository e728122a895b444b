"""Flights to Postgres, one carrier after the other in one transaction per batch, by a job that calls ``query.stop()`` at SIGTERM.

``query.stop()`` cancels the Spark jobs of the running batch and interrupts its thread, so the function's next call of Spark raises
an error (SPARK-39218). The error must leave the function: then Spark does not log the batch as done, and the next driver runs it
again. With ``--ignore-interruption`` the function takes the error for a normal end and returns, as many a job does to keep its log
clean. Spark then logs the batch as done, and its rows are lost.
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
from pyspark.sql import functions as f

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None)
parser.add_argument("--table", default="departures", help="table with a unique key on the source position")
parser.add_argument(
    "--ignore-interruption", action="store_true", help="return normally if query.stop() interrupts the batch"
)
args = parser.parse_args()

asked_to_end = asked_to_end_at_sigterm()

spark = spark_session("stops-its-query")
insert = insert_into(args.table, COLUMNS, "ON CONFLICT (src_partition, src_offset) DO NOTHING")


def write(batch: DataFrame, _batch_id: int) -> None:
    with psycopg.connect(args.postgres) as connection:
        for (carrier,) in batch.select("carrier").distinct().sort("carrier").collect():
            # One Spark job per carrier: here an interruption is noticed. psycopg does not notice it.
            for row in batch.where(f.col("carrier") == carrier).collect():
                connection.execute(insert, row)


def write_unless_stopped(batch: DataFrame, batch_id: int) -> None:
    try:
        write(batch, batch_id)
    except Exception as error:
        if not (args.ignore_interruption and asked_to_end.is_set()):
            raise
        print(f"batch {batch_id} was interrupted by query.stop(): {type(error).__name__}", flush=True)


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run_until_asked_to_end(flights, write_unless_stopped, args.checkpoint, asked_to_end)
