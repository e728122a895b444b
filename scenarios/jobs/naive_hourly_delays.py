"""Delays of each hour as they are often kept: no state, each batch adds its counts to those in the table.

An increment is not idempotent: a batch that is written twice counts twice.
"""

from __future__ import annotations

import argparse

import psycopg
from common import departures, spark_session
from hourly_delays import totals
from psycopg import sql
from pyspark.sql import DataFrame

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", default="flights", help="input topic")
parser.add_argument("--postgres", required=True, help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", default="hourly_delays", help="table with a unique key on carrier, origin and hour")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("naive-hourly-delays")
    add = sql.SQL(
        "INSERT INTO {} AS t (carrier, origin, hour, flights, delay_sum, delay_max) VALUES (%s, %s, %s, %s, %s, %s)"
        " ON CONFLICT (carrier, origin, hour) DO UPDATE SET flights = t.flights + EXCLUDED.flights,"
        " delay_sum = t.delay_sum + EXCLUDED.delay_sum, delay_max = greatest(t.delay_max, EXCLUDED.delay_max)"
    ).format(sql.Identifier(args.table))

    def increment(batch: DataFrame, _batch_id: int) -> None:
        rows = totals(batch).collect()
        with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
            cursor.executemany(add, rows)

    flights = departures(spark, args.kafka, args.topic)
    query = flights.writeStream.foreachBatch(increment).option("checkpointLocation", args.checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
