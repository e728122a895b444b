"""Flights to Postgres, effectively once without any helper: the source position is the primary key, and a conflict changes nothing."""

from __future__ import annotations

import psycopg
from common import COLUMNS, flights_with_planes, insert_into, job_parser, run, spark_session
from pyspark.sql import DataFrame

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None)
parser.add_argument("--table", default="departures", help="table with a unique key on the source position")
parser.add_argument("--isolation", default="read_committed", help="read_uncommitted is what Spark does by default")
args = parser.parse_args()

spark = spark_session("foreign")
columns = ["src_topic", *COLUMNS]
insert = insert_into(args.table, columns, "ON CONFLICT (src_topic, src_partition, src_offset) DO NOTHING")


def write(batch: DataFrame, _batch_id: int) -> None:
    rows = [(args.topic, *row) for row in batch.collect()]
    with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
        cursor.executemany(insert, rows)


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes, isolation=args.isolation)
run(flights, write, args.checkpoint)
