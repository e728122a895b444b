"""Flights to Postgres: the rows in one transaction, the record that the batch is done in the next one.

``--one-transaction`` is the remedy.
"""

from __future__ import annotations

import psycopg
from common import copy_rows, flights_with_planes, job_parser, run, spark_session
from pyspark.sql import DataFrame

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="departures")
parser.add_argument("--one-transaction", action="store_true", help="rows and record in one transaction")
args = parser.parse_args()

spark = spark_session("progress-outside")


def write(batch: DataFrame, batch_id: int) -> None:
    rows = batch.collect()
    with psycopg.connect(args.postgres) as connection:
        if connection.execute("SELECT FROM batches_done WHERE batch = %s", (batch_id,)).fetchone() is not None:
            return
        copy_rows(connection, args.table, batch.columns, rows)
        if not args.one_transaction:
            connection.commit()
        connection.execute("INSERT INTO batches_done (batch) VALUES (%s)", (batch_id,))


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
