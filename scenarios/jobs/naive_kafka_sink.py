"""Flights to Kafka with Spark's built-in sink, which promises at-least-once: a replayed batch is written again."""

from __future__ import annotations

from common import COLUMNS, flights_with_planes, job_parser, keyed_json, run_to_topic, spark_session

args = job_parser(__doc__, topic="flights", planes=None, output="departures").parse_args()

spark = spark_session("naive-kafka-sink")
flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run_to_topic(keyed_json(flights, COLUMNS), args.kafka, args.output, args.checkpoint)
