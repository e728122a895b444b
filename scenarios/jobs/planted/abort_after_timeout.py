"""Flights to Kafka in one transaction per batch: a commit that gets no answer in time is aborted, and the batch is sent again.

The job keeps its progress in the transaction, as it should, but does not read it before it sends the batch again.
"""

from __future__ import annotations

from common import flights_with_planes, job_parser, kafka_security, run, spark_session
from confluent_kafka import KafkaException, Producer
from pyspark.sql import DataFrame

args = job_parser(__doc__, topic="flights", planes=None, output="departures").parse_args()
_ATTEMPTS = 3
_COMMIT_S = 2.0

spark = spark_session("abort-after-timeout")


def write(batch: DataFrame, batch_id: int) -> None:
    records = batch.selectExpr("tailnum AS key", "to_json(struct(*)) AS value").collect()
    for attempt in range(_ATTEMPTS):
        producer = Producer(
            {
                "bootstrap.servers": args.kafka,
                "transactional.id": "departures",
                **kafka_security("LIBRDKAFKA_PROPERTIES"),
            }
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for record in records:
            producer.produce(args.output, key=record.key, value=record.value)
            producer.poll(0)
        producer.flush(30)
        try:
            producer.commit_transaction(_COMMIT_S)
            return
        except KafkaException as error:
            if attempt + 1 == _ATTEMPTS:
                raise
            print(f"batch {batch_id} is aborted and sent again: {error}")
            abort(producer)


def abort(producer: Producer) -> None:
    try:
        producer.abort_transaction(5)
    except KafkaException as error:
        print(f"the abort failed, too, and the next producer fences this one: {error}")


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
