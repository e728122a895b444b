"""Flights to Postgres over two connections: a UDF gives each flight a connection at random, and each connection writes its part.

Each of the two actions computes the batch, and so the random numbers, for itself. ``--persist`` is the remedy.
"""

from __future__ import annotations

import random

import psycopg
from common import COLUMNS, flights_with_planes, insert_into, job_parser, run, spark_session
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None)
parser.add_argument("--table", default="departures", help="table with a unique key on the source position")
parser.add_argument("--persist", action="store_true", help="compute each batch once")
args = parser.parse_args()

spark = spark_session("two-actions")
# Writing a row again changes nothing.
insert = insert_into(args.table, COLUMNS, "ON CONFLICT (src_partition, src_offset) DO NOTHING")
pick = f.udf(lambda: random.randrange(2), "INT").asNondeterministic()  # noqa: S311


def write(batch: DataFrame, _batch_id: int) -> None:
    spread = batch.withColumn("connection", pick())
    if args.persist:
        spread.persist()
    for number in range(2):
        rows = spread.where(f.col("connection") == number).select(*COLUMNS).collect()
        with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
            cursor.executemany(insert, rows)
    spread.unpersist()


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
