"""Flights to Postgres as they are often written: each batch is inserted and committed, and the job does not record that.

If the driver dies between the COMMIT and Spark's own commit log, the batch is written a second time.
"""

from __future__ import annotations

import argparse

from common import flights_with_planes, plain_append, spark_session

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", default="flights", help="input topic")
parser.add_argument("--planes", required=True, help="Parquet file of the planes")
parser.add_argument("--postgres", required=True, help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", default="departures", help="table to append to")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("naive-append")
    append = plain_append(args.postgres, args.table)
    flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
    query = flights.writeStream.foreachBatch(append).option("checkpointLocation", args.checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
