"""Flights to Kafka as a first program with transactions does it: one transaction per batch, and a new transactional.id per start.

Each start of the driver makes up its own id, "so that two can never get in each other's way". So nothing ends the transaction
that a dead start left open, and nothing fences a driver that was only slow.
"""

from __future__ import annotations

import argparse
import json
import uuid
from pathlib import Path

from common import flights_with_planes, kafka_security, spark_session
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from pyspark.sql import DataFrame

from onceproof.sinks import failpoints

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", default="flights", help="input topic")
parser.add_argument("--planes", required=True, help="Parquet file of the planes")
parser.add_argument("--output", default="departures", help="topic to write to")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")
_ANSWER_S = 30.0


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("naive-transactions")
    producer = Producer(
        {
            "bootstrap.servers": args.kafka,
            "transactional.id": f"departures-{uuid.uuid4()}",
            "partitioner": "murmur2_random",
            "metadata.recovery.strategy": "none",
            **kafka_security("LIBRDKAFKA_PROPERTIES"),
        }
    )
    producer.init_transactions(_ANSWER_S)

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            raise KafkaException(error)

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = batch.collect()
        producer.begin_transaction()
        for row in rows:
            value = json.dumps(row.asDict(), default=str)
            producer.produce(args.output, value=value, key=row["tailnum"], on_delivery=delivered)
            producer.poll(0)
        producer.flush(_ANSWER_S)
        # A harness may hold the job here; without one this does nothing.
        query_id = json.loads((Path(args.checkpoint) / "metadata").read_text())["id"]
        failpoints.reach("before-sink-commit", sink="kafka", batch=batch_id, query_id=query_id)
        producer.commit_transaction(_ANSWER_S)

    flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
    query = flights.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
