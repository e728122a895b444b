"""Flights to Postgres, one row at a time, each under its source position: writing a row again changes nothing.

By default every INSERT commits by itself (autocommit), as in many clients: readers see a batch appear row by row, and if the
driver dies in the middle, half of it until another driver is up. ``--one-transaction`` is the remedy.
"""

from __future__ import annotations

import argparse

import psycopg
from common import COLUMNS, flights_with_planes, spark_session
from psycopg import sql
from pyspark.sql import DataFrame

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", default="flights", help="input topic")
parser.add_argument("--planes", required=True, help="Parquet file of the planes")
parser.add_argument("--postgres", required=True, help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", default="departures", help="table with a unique key on the source position")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")
parser.add_argument("--one-transaction", action="store_true", help="commit a batch as a whole")


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("row-by-row")
    insert = sql.SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT (src_partition, src_offset) DO NOTHING").format(
        sql.Identifier(args.table),
        sql.SQL(", ").join(map(sql.Identifier, COLUMNS)),
        sql.SQL(", ").join([sql.Placeholder()] * len(COLUMNS)),
    )

    def write(batch: DataFrame, _batch_id: int) -> None:
        rows = batch.collect()
        with psycopg.connect(args.postgres, autocommit=not args.one_transaction) as connection:
            for row in rows:
                connection.execute(insert, tuple(row))

    flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
    query = flights.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
