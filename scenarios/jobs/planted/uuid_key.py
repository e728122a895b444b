"""Flights to Postgres, "idempotent": each row has a UUID as its primary key, and a conflict changes nothing.

The UUID is made when the batch runs, so a replayed row has another one.
"""

from __future__ import annotations

import psycopg
from common import COLUMNS, flights_with_planes, insert_into, job_parser, run, spark_session
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None)
parser.add_argument("--table", default="departures", help="table with the primary key id")
args = parser.parse_args()

spark = spark_session("uuid-key")
columns = ["id", *COLUMNS]
insert = insert_into(args.table, columns, "ON CONFLICT (id) DO NOTHING")


def write(batch: DataFrame, _batch_id: int) -> None:
    rows = batch.select(*columns).collect()
    with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
        cursor.executemany(insert, rows)


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes).withColumn("id", f.expr("uuid()"))
run(flights, write, args.checkpoint)
