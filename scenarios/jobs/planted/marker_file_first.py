"""Flights to Postgres: a file per batch says that the batch is written. It is created exclusively, before the rows are written.

Only the driver that creates the file writes the batch, so no batch is ever written twice.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
from common import copy_rows, flights_with_planes, job_parser, run, spark_session
from pyspark.sql import DataFrame

args = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="departures").parse_args()

spark = spark_session("marker-file-first")
done = Path("done")
done.mkdir(exist_ok=True)


def write(batch: DataFrame, batch_id: int) -> None:
    rows = batch.collect()
    try:
        (done / str(batch_id)).touch(exist_ok=False)
    except FileExistsError:
        return
    with psycopg.connect(args.postgres) as connection:
        copy_rows(connection, args.table, batch.columns, rows)


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
