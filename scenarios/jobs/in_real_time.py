"""Flights to Kafka with Spark's built-in sink, in a mode that writes rows before it logs their input: real-time or continuous.

Without ``--real-time`` or ``--continuous`` it processes micro-batches, each of which is planned before it runs.
"""

from __future__ import annotations

from common import departures, job_parser, keyed_json, run_to_topic, spark_session

COLUMNS = ["src_partition", "src_offset", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay"]

parser = job_parser(__doc__, topic="flights", output="departures")
parser.add_argument("--real-time", metavar="INTERVAL", help="real-time mode, with a batch per interval")
parser.add_argument("--continuous", metavar="INTERVAL", help="continuous processing, with an epoch per interval")
args = parser.parse_args()

given = {"realTime": args.real_time, "continuous": args.continuous}
trigger = {name: interval for name, interval in given.items() if interval}
flights = departures(spark_session("in-real-time"), args.kafka, args.topic)
run_to_topic(keyed_json(flights, COLUMNS), args.kafka, args.output, args.checkpoint, **trigger)
