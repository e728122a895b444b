"""Delays of each hour, carrier and origin, kept up to date in a Postgres table: state in RocksDB, effectively once.

The state holds the totals: a batch replaces the total of each window that it touched.
"""

from __future__ import annotations

import argparse

from common import STATEFUL, departures, spark_session
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from onceproof.sinks.postgres import PostgresUpsert

KEY = ["carrier", "origin", "hour"]

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", default="flights", help="input topic")
parser.add_argument("--postgres", required=True, help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", default="hourly_delays", help="table with a unique key on carrier, origin and hour")
parser.add_argument("--watermark", default="3 days", help="how late a flight may come")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")


def totals(flights: DataFrame) -> DataFrame:
    """Flights, and the sum and maximum of their delays at departure (minutes), by the hour that they were scheduled for."""
    return (
        flights.groupBy("carrier", "origin", f.window("sched_dep", "1 hour").alias("window"))
        .agg(
            f.count("*").alias("flights"), f.sum("dep_delay").alias("delay_sum"), f.max("dep_delay").alias("delay_max")
        )
        .select("carrier", "origin", f.col("window.start").alias("hour"), "flights", "delay_sum", "delay_max")
    )


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("hourly-delays", STATEFUL)
    sink = PostgresUpsert(args.postgres, args.table, key=KEY, pipeline="hourly-delays", checkpoint=args.checkpoint)
    flights = departures(spark, args.kafka, args.topic).withWatermark("sched_dep", args.watermark)
    query = (
        totals(flights)
        .writeStream.foreachBatch(sink)
        .outputMode("update")
        .option("checkpointLocation", args.checkpoint)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
