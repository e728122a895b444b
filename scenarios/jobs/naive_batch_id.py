"""Flights to Postgres, "exactly once" by the number of the batch: the job skips a number that it has recorded.

The rows and the number are one transaction, so a plain replay does no harm. But the number belongs to the checkpoint: a new
checkpoint counts from 0 again, and with ``--by-query`` (as with a transaction id made of Spark's query id) a checkpoint that
has lost its id looks like another query's.
"""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
from common import copy_rows, flights_with_planes, job_parser, run, spark_session
from pyspark.sql import DataFrame

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="departures")
parser.add_argument("--by-query", action="store_true", help="count by Spark's query id, not by the pipeline's name")
args = parser.parse_args()

LAST = "SELECT last FROM batches_done WHERE writer = %s FOR UPDATE"
RECORD = """
    INSERT INTO batches_done (writer, last) VALUES (%s, %s) ON CONFLICT (writer) DO UPDATE SET last = EXCLUDED.last
"""

spark = spark_session("naive-batch-id")


def write(batch: DataFrame, batch_id: int) -> None:
    rows = batch.collect()
    query_id = json.loads((Path(args.checkpoint) / "metadata").read_text())["id"]
    writer = query_id if args.by_query else "flights"
    with psycopg.connect(args.postgres) as connection:
        found = connection.execute(LAST, (writer,)).fetchone()
        if found is not None and batch_id <= found[0]:
            return
        copy_rows(connection, args.table, batch.columns, rows)
        connection.execute(RECORD, (writer, batch_id))


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
