"""Flights to Kafka with Spark's built-in sink, in real-time mode: rows are written before the batch's input is logged.

Without ``--real-time`` it processes micro-batches, each of which is planned before it runs.
"""

from __future__ import annotations

from common import departures, job_parser, keyed_json, run_to_topic, spark_session

COLUMNS = ["src_partition", "src_offset", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay"]

parser = job_parser(__doc__, topic="flights", output="departures")
parser.add_argument("--real-time", metavar="INTERVAL", help="real-time mode, with a batch per interval")
args = parser.parse_args()

trigger = {"realTime": args.real_time} if args.real_time else {}
flights = departures(spark_session("in-real-time"), args.kafka, args.topic)
run_to_topic(keyed_json(flights, COLUMNS), args.kafka, args.output, args.checkpoint, **trigger)
