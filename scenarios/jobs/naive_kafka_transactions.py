"""Flights to Kafka in one transaction per batch, as if that alone made it exactly-once: no record shows which batch was committed.

If the job cannot tell whether a commit was applied, it has no record to look it up in, and writes the batch again.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from common import flights_with_planes, kafka_security, spark_session
from confluent_kafka import Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", default="flights", help="input topic")
parser.add_argument("--planes", required=True, help="Parquet file of the planes")
parser.add_argument("--output", default="departures", help="topic to write to")
parser.add_argument("--commit-timeout", type=float, default=2.0, help="seconds to wait for the answer to a commit")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")


def main() -> None:
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
    query = flights.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
