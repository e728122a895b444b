"""Flights to Postgres: an error at COMMIT is logged, because "the connection broke after everything was sent"."""

from __future__ import annotations

import logging

import psycopg
from common import copy_rows, flights_with_planes, job_parser, run, spark_session
from pyspark.sql import DataFrame

args = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="departures").parse_args()

log = logging.getLogger("departures")
spark = spark_session("commit-error-swallowed")


def write(batch: DataFrame, batch_id: int) -> None:
    rows = batch.collect()
    connection = psycopg.connect(args.postgres)
    copy_rows(connection, args.table, batch.columns, rows)
    try:
        connection.commit()
    except psycopg.OperationalError:
        log.exception("the connection broke at the COMMIT of batch %s", batch_id)
    finally:
        connection.close()


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
