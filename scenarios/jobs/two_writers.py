"""Flights to Postgres in two actions on one batch: a UDF deals each flight to one of two writers, and each writes its own.

The batch is persisted, so that both actions see the same deal. But what is persisted lives in an executor: if it dies, Spark
computes the lost part again, and the UDF gives other values. ``--by-record`` is the remedy: the deal follows from the record.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import psycopg
from common import departures, insert_into, job_parser, run, spark_session
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

COLUMNS = ["src_partition", "src_offset", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay"]

parser = job_parser(__doc__, topic="flights", postgres=None)
parser.add_argument("--table", default="departures", help="table with a unique key on the source position")
parser.add_argument("--by-record", action="store_true", help="deal by the source position")
args = parser.parse_args()

spark = spark_session("two-writers")
postgres = args.postgres
# Writing a row again changes nothing.
insert = insert_into(args.table, COLUMNS, "ON CONFLICT (src_partition, src_offset) DO NOTHING")
at_random = f.udf(lambda: random.randrange(2), "INT").asNondeterministic()  # noqa: S311
writer = f.pmod(f.hash("src_partition", "src_offset"), f.lit(2)) if args.by_record else at_random()


def insert_all(rows: Iterable[Row]) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        for row in rows:
            connection.execute(insert, row)


def write(batch: DataFrame, _batch_id: int) -> None:
    dealt = batch.withColumn("writer", writer).persist()
    for number in range(2):
        dealt.where(f.col("writer") == number).select(*COLUMNS).foreachPartition(insert_all)
    dealt.unpersist()


flights = departures(spark, args.kafka, args.topic).select(*COLUMNS)
run(flights, write, args.checkpoint)
