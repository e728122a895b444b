"""Flights that departed, enriched with their planes, written to a Kafka topic: one transaction per batch."""

from __future__ import annotations

import argparse

from common import flights_with_planes, kafka_security, spark_session

from onceproof.sinks.kafka import KafkaTransactional

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", default="flights", help="input topic")
parser.add_argument("--planes", required=True, help="Parquet file of the planes")
parser.add_argument("--output", default="departures", help="topic to write to")
parser.add_argument("--progress", default="departures-progress", help="topic that keeps the sink's progress")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")
parser.add_argument("--commit-timeout", type=float, default=30.0, help="seconds to wait for the answer to a commit")
parser.add_argument("--commit-attempts", type=int, default=3, help="how often to ask when the answer does not come")


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("flights-to-kafka")
    sink = KafkaTransactional(
        args.kafka,
        args.output,
        pipeline="flights-to-kafka",
        progress_topic=args.progress,
        checkpoint=args.checkpoint,
        key="tailnum",
        config=kafka_security("LIBRDKAFKA_PROPERTIES"),
        commit_timeout_s=args.commit_timeout,
        commit_attempts=args.commit_attempts,
    )
    flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
    query = flights.writeStream.foreachBatch(sink).option("checkpointLocation", args.checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
