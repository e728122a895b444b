"""Flights to Postgres as each task writes them: row by row, each committed at once, and nothing removes a failed task's rows.

Spark runs a task whose process dies in the middle again, from its first row: the rows of the first attempt are there twice.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
from common import departures, insert_into, job_parser, run
from pyspark.sql import DataFrame, Row, SparkSession

COLUMNS = ["src_partition", "src_offset", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay"]

parser = job_parser(__doc__, topic="flights", postgres=None, table="departures")
parser.add_argument("--master", help="where tasks run (default: where the environment says)")
args = parser.parse_args()

builder = SparkSession.builder.appName("naive-partitions")
spark = (builder.master(args.master) if args.master else builder).getOrCreate()
postgres = args.postgres
insert = insert_into(args.table, COLUMNS)


def append(rows: Iterator[Row]) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        for row in rows:
            connection.execute(insert, row)


def write(batch: DataFrame, _batch_id: int) -> None:
    batch.foreachPartition(append)


flights = departures(spark, args.kafka, args.topic).select(*COLUMNS)
run(flights, write, args.checkpoint)
