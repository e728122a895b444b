"""Flights to Kafka with Spark's built-in sink and asynchronous progress tracking, for a lower latency."""

from __future__ import annotations

from common import COLUMNS, flights_with_planes, job_parser, keyed_json, spark_kafka_security, spark_session

args = job_parser(__doc__, topic="flights", planes=None, output="departures").parse_args()

spark = spark_session("async-progress")
options = {
    "kafka.bootstrap.servers": args.kafka,
    "topic": args.output,
    "checkpointLocation": args.checkpoint,
    "asyncProgressTrackingEnabled": "true",
    "asyncProgressTrackingCheckpointIntervalMs": "1000",
    **spark_kafka_security(),
}
flights = keyed_json(flights_with_planes(spark, args.kafka, args.topic, args.planes), COLUMNS)
flights.writeStream.format("kafka").options(**options).start().awaitTermination()
