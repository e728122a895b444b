"""Flights that departed, enriched with their planes, to a Postgres table and to a Kafka topic, from one query.

The two sinks can never commit in one step. Each keeps its own progress: when a batch that only one of them committed is
replayed, that sink skips it and the other writes it.
"""

from __future__ import annotations

from common import flights_with_planes, job_parser, kafka_security, run, spark_session
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from onceproof.sinks.kafka import KafkaTransactional
from onceproof.sinks.postgres import PostgresAppend

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="departures", output="departures")
parser.add_argument("--airports", help="Parquet file of the airports: adds name and time zone of the destination")
parser.add_argument("--progress", default="departures-progress", help="topic that keeps the Kafka sink's progress")
parser.add_argument("--postgres-commit-timeout", type=float, default=30.0, help="seconds to wait for a COMMIT's answer")
parser.add_argument("--kafka-commit-timeout", type=float, default=30.0, help="seconds to wait for EndTxn's answer")
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
if args.airports is not None:
    destinations = spark.read.parquet(args.airports).selectExpr(
        "faa AS dest", "name AS dest_name", "tzone AS dest_zone"
    )
    flights = flights.join(f.broadcast(destinations), "dest", "left")
run(flights, write, args.checkpoint)
