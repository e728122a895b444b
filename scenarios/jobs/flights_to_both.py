"""Flights that departed, enriched with their planes, to a Postgres table and to a Kafka topic, from one query.

The two sinks can never commit in one step. Each keeps its own progress: when a batch that only one of them committed is
replayed, that sink skips it and the other writes it.
"""

from __future__ import annotations

import argparse

from common import flights_with_planes, kafka_security, spark_session
from pyspark.sql import DataFrame

from onceproof.sinks.kafka import KafkaTransactional
from onceproof.sinks.postgres import PostgresAppend

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", default="flights", help="input topic")
parser.add_argument("--planes", required=True, help="Parquet file of the planes")
parser.add_argument("--postgres", required=True, help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", default="departures", help="table to append to")
parser.add_argument("--output", default="departures", help="topic to write to")
parser.add_argument("--progress", default="departures-progress", help="topic that keeps the Kafka sink's progress")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")
parser.add_argument("--postgres-commit-timeout", type=float, default=30.0, help="seconds to wait for a COMMIT's answer")
parser.add_argument("--kafka-commit-timeout", type=float, default=30.0, help="seconds to wait for EndTxn's answer")


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("flights-to-both")
    to_postgres = PostgresAppend(
        args.postgres,
        args.table,
        pipeline="flights-to-both",
        checkpoint=args.checkpoint,
        commit_timeout_s=args.postgres_commit_timeout,
    )
    to_kafka = KafkaTransactional(
        args.kafka,
        args.output,
        pipeline="flights-to-both",
        progress_topic=args.progress,
        checkpoint=args.checkpoint,
        key="tailnum",
        config=kafka_security("LIBRDKAFKA_PROPERTIES"),
        commit_timeout_s=args.kafka_commit_timeout,
    )

    def write(batch: DataFrame, batch_id: int) -> None:
        # Computed once and kept: both sinks must get the same rows, and each runs an action on the frame.
        batch.persist()
        try:
            to_postgres(batch, batch_id)
            to_kafka(batch, batch_id)
        finally:
            batch.unpersist()

    flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
    query = flights.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
