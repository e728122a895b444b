"""The naive append on a Kafka with a login and TLS: as `scenarios/jobs/naive_append.py`, and it trusts the truststore it is given."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import onceproof

sys.path.insert(0, str(Path(onceproof.__file__).parent / "scenarios" / "jobs"))

from common import COLUMNS, FLIGHT, plain_append, spark_session
from pyspark.sql import functions as f

parser = argparse.ArgumentParser(description=__doc__)
for name in ("kafka", "security", "truststore", "topic", "planes", "postgres", "table", "checkpoint"):
    parser.add_argument(f"--{name}", required=True)

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def main() -> None:
    args = parser.parse_args()
    user, password = os.environ["TEST_KAFKA_USER"], os.environ["TEST_KAFKA_PASSWORD"]
    security = {
        "kafka.security.protocol": args.security,
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{PLAIN} username="{user}" password="{password}";',
        "kafka.ssl.truststore.location": args.truststore,
        "kafka.ssl.truststore.type": "PKCS12",
        "kafka.ssl.truststore.password": "changeit",
    }
    spark = spark_session("encrypted-append")
    topic = {
        "kafka.bootstrap.servers": args.kafka,
        "subscribe": args.topic,
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.wait.ms": "10",
    }
    planes = f.broadcast(spark.read.parquet(args.planes).select("tailnum", "manufacturer", "model"))
    flight = f.from_json(f.col("value").cast("string"), FLIGHT)
    flights = (
        spark.readStream.format("kafka")
        .options(**topic, **security)
        .load()
        .select(f.col("partition").alias("src_partition"), f.col("offset").alias("src_offset"), flight.alias("flight"))
        .select("src_partition", "src_offset", "flight.*")
        .where("dep_time IS NOT NULL")
        .join(planes, "tailnum", "left")
        .select(*COLUMNS)
    )
    append = plain_append(args.postgres, args.table)
    flights.writeStream.foreachBatch(append).option("checkpointLocation", args.checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
