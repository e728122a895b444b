"""Flights to Postgres: a transaction that fails with a broken connection is tried again, up to three times."""

from __future__ import annotations

import psycopg
from common import copy_rows, flights_with_planes, job_parser, run, spark_session
from pyspark.sql import DataFrame
from tenacity import retry, retry_if_exception_type, stop_after_attempt

args = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="departures").parse_args()

spark = spark_session("commit-tried-again")


@retry(retry=retry_if_exception_type(psycopg.OperationalError), stop=stop_after_attempt(3), reraise=True)
def write(batch: DataFrame, _batch_id: int) -> None:
    rows = batch.collect()
    with psycopg.connect(args.postgres) as connection:
        copy_rows(connection, args.table, batch.columns, rows)


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
