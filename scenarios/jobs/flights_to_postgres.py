"""Flights that departed, enriched with their planes, appended to a Postgres table: effectively once."""

from __future__ import annotations

import argparse

from common import flights_with_planes, spark_session

from onceproof.sinks.postgres import PostgresAppend
from onceproof.sinks.postgres_staged import PostgresStaged

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", default="flights", help="input topic")
parser.add_argument("--planes", required=True, help="Parquet file of the planes")
parser.add_argument("--postgres", required=True, help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", default="departures", help="table to append to")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")
parser.add_argument("--staged", action="store_true", help="write from the tasks, not from the driver")
parser.add_argument("--commit-timeout", type=float, default=30.0, help="seconds to wait for the answer to a COMMIT")


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("flights-to-postgres")
    sink = (PostgresStaged if args.staged else PostgresAppend)(
        args.postgres,
        args.table,
        pipeline="flights-to-postgres",
        checkpoint=args.checkpoint,
        commit_timeout_s=args.commit_timeout,
    )
    flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
    query = flights.writeStream.foreachBatch(sink).option("checkpointLocation", args.checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
