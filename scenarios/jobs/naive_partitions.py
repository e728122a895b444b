"""Flights to Postgres as each task writes them: row by row, each committed at once, and nothing removes a failed task's rows.

Spark runs a task whose process dies in the middle again, from its first row: the rows of the first attempt are there twice.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import psycopg
from common import departures
from psycopg import sql
from pyspark.sql import DataFrame, Row, SparkSession

COLUMNS = ["src_partition", "src_offset", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay"]

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", default="flights", help="input topic")
parser.add_argument("--postgres", required=True, help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", default="departures", help="table to append to")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")
parser.add_argument("--master", help="where tasks run (default: where the environment says)")


def main() -> None:
    args = parser.parse_args()
    builder = SparkSession.builder.appName("naive-partitions")
    spark = (builder.master(args.master) if args.master else builder).getOrCreate()
    postgres = args.postgres
    insert = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier(args.table),
        sql.SQL(", ").join(map(sql.Identifier, COLUMNS)),
        sql.SQL(", ").join([sql.Placeholder()] * len(COLUMNS)),
    )

    def append(rows: Iterator[Row]) -> None:
        with psycopg.connect(postgres, autocommit=True) as connection:
            for row in rows:
                connection.execute(insert, row)

    def write(batch: DataFrame, _batch_id: int) -> None:
        batch.foreachPartition(append)

    flights = departures(spark, args.kafka, args.topic).select(*COLUMNS)
    flights.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
