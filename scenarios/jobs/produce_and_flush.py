"""Flights to Kafka with a plain producer: produce, flush, done. flush() returns as always if the broker has refused records.

Only a callback is given the error of each record. ``--check`` is the remedy: with such an error the batch fails.
"""

from __future__ import annotations

from common import flights_with_planes, job_parser, kafka_security, run, spark_session
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from pyspark.sql import DataFrame

parser = job_parser(__doc__, topic="flights", planes=None, output="departures")
parser.add_argument("--check", action="store_true", help="fail the batch if a record was refused")
args = parser.parse_args()

spark = spark_session("produce-and-flush")
producer = Producer(
    {"bootstrap.servers": args.kafka, "enable.idempotence": True, **kafka_security("LIBRDKAFKA_PROPERTIES")}
)


def write(batch: DataFrame, _batch_id: int) -> None:
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _record: Message) -> None:
        if error is not None:
            errors.append(error)

    for row in batch.selectExpr("tailnum AS key", "to_json(struct(*)) AS value").toLocalIterator():
        producer.produce(args.output, key=row.key, value=row.value, on_delivery=delivered if args.check else None)
        producer.poll(0)
    producer.flush()
    if errors:
        raise KafkaException(errors[0])


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
