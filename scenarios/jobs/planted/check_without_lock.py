"""Flights to Postgres: the job asks whether the batch is done, writes it, and records it, all in one transaction.

Nothing makes two transactions that ask at the same time wait for each other.
"""

from __future__ import annotations

import psycopg
from common import copy_rows, flights_with_planes, job_parser, run, spark_session
from pyspark.sql import DataFrame

args = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="departures").parse_args()

spark = spark_session("check-without-lock")


def write(batch: DataFrame, batch_id: int) -> None:
    rows = batch.collect()
    with psycopg.connect(args.postgres) as connection:
        if connection.execute("SELECT FROM batches_done WHERE batch = %s", (batch_id,)).fetchone() is not None:
            return
        copy_rows(connection, args.table, batch.columns, rows)
        connection.execute("INSERT INTO batches_done (batch) VALUES (%s)", (batch_id,))


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
