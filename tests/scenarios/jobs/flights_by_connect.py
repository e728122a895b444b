"""Flights to Postgres, as a client of the Spark Connect server whose address is in ``SPARK_REMOTE``.

The server is the driver: it plans the batches, writes the checkpoint, and runs ``foreachBatch`` in a Python worker of its own.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from onceproof.sinks.postgres import PostgresAppend

sys.path.insert(0, str(Path(__file__).parents[3] / "scenarios" / "jobs"))

from common import flights_with_planes, plain_append  # in the folder of the shipped jobs

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", required=True, help="input topic")
parser.add_argument("--planes", required=True, help="Parquet file of the planes")
parser.add_argument("--postgres", required=True, help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", required=True, help="table to append to")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")
parser.add_argument("--naive", action="store_true", help="append without recording the progress")


def main() -> None:
    args = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    pipeline = "flights-by-connect"
    once = PostgresAppend(args.postgres, args.table, pipeline=pipeline, checkpoint=args.checkpoint)
    sink = plain_append(args.postgres, args.table) if args.naive else once
    flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
    query = flights.writeStream.foreachBatch(sink).option("checkpointLocation", args.checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
