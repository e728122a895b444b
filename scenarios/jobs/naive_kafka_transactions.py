"""Flights to Kafka in one transaction per batch, as if that alone made it exactly-once: no record shows which batch was committed.

If the job cannot tell whether a commit was applied, it has no record to look it up in, and writes the batch again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common import flights_with_planes, job_parser, kafka_security, run, spark_session
from confluent_kafka import Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

parser = job_parser(__doc__, topic="flights", planes=None, output="departures")
parser.add_argument("--commit-timeout", type=float, default=2.0, help="seconds to wait for the answer to a commit")
args = parser.parse_args()

spark = spark_session("naive-kafka-transactions")


def write(batch: DataFrame, _batch_id: int) -> None:
    # A stable transactional.id: no second writer, no transaction left open. It does not remember batches, though.
    settings = {"bootstrap.servers": args.kafka, "transactional.id": "departures", "linger.ms": 5}
    producer = Producer({**settings, **kafka_security("LIBRDKAFKA_PROPERTIES")})
    producer.init_transactions(30)
    producer.begin_transaction()
    for row in batch.selectExpr("tailnum AS key", "to_json(struct(*)) AS value").toLocalIterator():
        producer.produce(args.output, key=row.key, value=row.value)
        producer.poll(0)
    producer.flush(30)
    producer.commit_transaction(args.commit_timeout)


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
