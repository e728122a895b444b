"""Flights to a table and to a topic, from one batch: the table records which batches are done, for both.

The job skips a batch that the table has, for the topic too. So if the driver dies between the two, the topic never gets the
batch, and nothing ever compares the two.
"""

from __future__ import annotations

import psycopg
from common import copy_rows, flights_with_planes, job_parser, keyed_json, run, spark_kafka_security, spark_session
from pyspark.sql import DataFrame

args = job_parser(
    __doc__, topic="flights", planes=None, postgres=None, table="departures", output="departures"
).parse_args()


spark = spark_session("naive-two-sinks")


def write(batch: DataFrame, batch_id: int) -> None:
    rows = batch.collect()
    with psycopg.connect(args.postgres) as connection:
        note = "INSERT INTO batches_done (batch) VALUES (%s) ON CONFLICT DO NOTHING"
        if connection.execute(note, (batch_id,)).rowcount == 0:
            return
        copy_rows(connection, args.table, batch.columns, rows)
    records = keyed_json(batch, batch.columns)
    options = {"kafka.bootstrap.servers": args.kafka, "topic": args.output, **spark_kafka_security()}
    records.write.format("kafka").options(**options).save()


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
