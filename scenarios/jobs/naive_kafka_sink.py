"""Flights to Kafka with Spark's built-in sink, which promises at-least-once: a replayed batch is written again."""

from __future__ import annotations

import argparse

from common import COLUMNS, flights_with_planes, spark_kafka_security, spark_session
from pyspark.sql import functions as f

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", default="flights", help="input topic")
parser.add_argument("--planes", required=True, help="Parquet file of the planes")
parser.add_argument("--output", default="departures", help="topic to write to")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("naive-kafka-sink")
    flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
    value = f.to_json(f.struct(*COLUMNS), {"ignoreNullFields": "false"})
    query = (
        flights.select(f.col("tailnum").alias("key"), value.alias("value"))
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", args.kafka)
        .options(**spark_kafka_security())
        .option("topic", args.output)
        .option("checkpointLocation", args.checkpoint)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
