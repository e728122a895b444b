"""Flights to Postgres, effectively once without any helper: the source position is the primary key, and a conflict changes nothing."""

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
parser.add_argument("--isolation", default="read_committed", help="read_uncommitted is what Spark does by default")


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("foreign")
    columns = ["src_topic", *COLUMNS]
    insert = sql.SQL(
        "INSERT INTO {} ({}) VALUES ({}) ON CONFLICT (src_topic, src_partition, src_offset) DO NOTHING"
    ).format(
        sql.Identifier(args.table),
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.SQL(", ").join([sql.Placeholder()] * len(columns)),
    )

    def write(batch: DataFrame, _batch_id: int) -> None:
        rows = [(args.topic, *row) for row in batch.collect()]
        with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
            cursor.executemany(insert, rows)

    flights = flights_with_planes(spark, args.kafka, args.topic, args.planes, isolation=args.isolation)
    query = flights.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
