"""Flights to Kafka with Spark's built-in sink, and the producer settings that decide what a broken connection does."""

from __future__ import annotations

from common import departures, job_parser, keyed_json, run_to_topic, spark_session

COLUMNS = ["src_partition", "src_offset", "carrier", "flight", "tailnum", "origin", "dest", "sched_dep", "dep_delay"]

parser = job_parser(__doc__, topic="flights", output="departures")
parser.add_argument(
    "--acks", default="all", choices=["all", "1"], help="who must have a record before it counts as sent"
)
parser.add_argument("--no-idempotence", action="store_true", help="retries are not recognised by the broker")
args = parser.parse_args()

spark = spark_session("flights-by-plain-producer")
flights = departures(spark, args.kafka, args.topic)
producer = {
    "kafka.acks": args.acks,
    # Java's producer refuses to be idempotent without acks=all.
    "kafka.enable.idempotence": str(args.acks == "all" and not args.no_idempotence).lower(),
    # Five requests at once is the default, and what an idempotent producer keeps in order.
    "kafka.max.in.flight.requests.per.connection": "5",
    # Small, so that one batch is many requests.
    "kafka.batch.size": "2048",
    # A request to a broker that does not answer is given up after 3 s, and tried again for a minute.
    "kafka.request.timeout.ms": "3000",
    "kafka.delivery.timeout.ms": "60000",
    "kafka.reconnect.backoff.max.ms": "500",
}
run_to_topic(keyed_json(flights, COLUMNS), args.kafka, args.output, args.checkpoint, producer)
