"""Flights to Kafka as a first program with transactions does it: one transaction per batch, and a new transactional.id per start.

Each start of the driver makes up its own id, "so that two can never get in each other's way". So nothing ends the transaction
that a dead start left open, and nothing fences a driver that was only slow.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from common import flights_with_planes, job_parser, kafka_security, run, spark_session
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from pyspark.sql import DataFrame

from onceproof.sinks import failpoints

args = job_parser(__doc__, topic="flights", planes=None, output="departures").parse_args()
_ANSWER_S = 30.0


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
run(flights, write, args.checkpoint)
