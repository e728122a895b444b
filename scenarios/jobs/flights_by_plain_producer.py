"""Flights to Kafka with Spark's built-in sink, and the producer settings that decide what a broken connection does."""

from __future__ import annotations

import argparse

from common import departures, spark_kafka_security, spark_session
from pyspark.sql import functions as f

COLUMNS = ["src_partition", "src_offset", "carrier", "flight", "tailnum", "origin", "dest", "sched_dep", "dep_delay"]

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", default="flights", help="input topic")
parser.add_argument("--output", default="departures", help="topic to write to")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")
parser.add_argument(
    "--acks", default="all", choices=["all", "1"], help="who must have a record before it counts as sent"
)
parser.add_argument("--no-idempotence", action="store_true", help="retries are not recognised by the broker")


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("flights-by-plain-producer")
    flights = departures(spark, args.kafka, args.topic)
    value = f.to_json(f.struct(*COLUMNS), {"ignoreNullFields": "false"})
    query = (
        flights.select(f.col("tailnum").alias("key"), value.alias("value"))
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", args.kafka)
        .options(**spark_kafka_security())
        .option("topic", args.output)
        .option("checkpointLocation", args.checkpoint)
        .option("kafka.acks", args.acks)
        # Java's producer refuses to be idempotent without acks=all.
        .option("kafka.enable.idempotence", str(args.acks == "all" and not args.no_idempotence).lower())
        # Five requests at once is the default, and what an idempotent producer keeps in order.
        .option("kafka.max.in.flight.requests.per.connection", "5")
        # Small, so that one batch is many requests.
        .option("kafka.batch.size", "2048")
        # A request to a broker that does not answer is given up after 3 s, and tried again for a minute.
        .option("kafka.request.timeout.ms", "3000")
        .option("kafka.delivery.timeout.ms", "60000")
        .option("kafka.reconnect.backoff.max.ms", "500")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
