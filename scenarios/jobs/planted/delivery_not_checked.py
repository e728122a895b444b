"""Flights to Kafka with a plain producer: produce, flush, done. Nothing looks at what became of the records."""

from __future__ import annotations

from common import flights_with_planes, job_parser, kafka_security, run, spark_session
from confluent_kafka import Producer
from pyspark.sql import DataFrame

args = job_parser(__doc__, topic="flights", planes=None, output="departures").parse_args()

spark = spark_session("delivery-not-checked")
producer = Producer(
    {"bootstrap.servers": args.kafka, "enable.idempotence": True, **kafka_security("LIBRDKAFKA_PROPERTIES")}
)


def write(batch: DataFrame, _batch_id: int) -> None:
    for row in batch.selectExpr("tailnum AS key", "to_json(struct(*)) AS value").toLocalIterator():
        producer.produce(args.output, key=row.key, value=row.value)
        producer.poll(0)
    producer.flush()


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
