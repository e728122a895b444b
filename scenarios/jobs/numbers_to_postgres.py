"""Generated records appended to a Postgres table, effectively once: the load of the benchmarks."""

from __future__ import annotations

import argparse

from common import read_topic, spark_session
from pyspark.sql import functions as f

from onceproof.sinks.postgres import PostgresAppend

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", default="numbers", help="input topic")
parser.add_argument("--postgres", required=True, help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", default="numbers", help="table to append to")
parser.add_argument("--pipeline", default="numbers-to-postgres", help="name under which the sink keeps its progress")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("numbers-to-postgres")
    sink = PostgresAppend(args.postgres, args.table, pipeline=args.pipeline, checkpoint=args.checkpoint)
    number = f.from_json(f.col("value").cast("string"), "id BIGINT, key STRING, seq BIGINT, payload STRING")
    numbers = read_topic(spark, args.kafka, args.topic).select(number.alias("number")).select("number.*")
    query = numbers.writeStream.foreachBatch(sink).option("checkpointLocation", args.checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
