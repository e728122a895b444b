"""Flights that departed, enriched with their planes, written to a Kafka topic: one transaction per batch.

With ``--from-tasks``, one transaction per batch and source partition.
"""

from __future__ import annotations

from common import flights_with_planes, job_parser, kafka_security, run, spark_session

from onceproof.sinks.kafka import KafkaTransactional
from onceproof.sinks.tasks.kafka import KafkaPartitioned

parser = job_parser(__doc__, topic="flights", planes=None, output="departures", progress="departures-progress")
parser.add_argument("--commit-timeout", type=float, default=30.0, help="seconds to wait for the answer to a commit")
parser.add_argument("--commit-attempts", type=int, default=3, help="how often to ask when the answer does not come")
parser.add_argument("--key", default="tailnum", help="column that is the key of each record")
parser.add_argument(
    "--dead-letters", help="topic for records that the topic does not take (default: they fail their batch)"
)
parser.add_argument("--from-tasks", action="store_true", help="write from the tasks, not from the driver")
parser.add_argument("--min-partitions", help="read each source partition in several tasks (minPartitions)")
args = parser.parse_args()

spark = spark_session("flights-to-kafka")
settings = {"source": ["src_partition", "src_offset"]} if args.from_tasks else {"dead_letters": args.dead_letters}
sink = (KafkaPartitioned if args.from_tasks else KafkaTransactional)(
    args.kafka,
    args.output,
    pipeline="flights-to-kafka",
    progress_topic=args.progress,
    checkpoint=args.checkpoint,
    key=args.key,
    **settings,
    config=kafka_security("LIBRDKAFKA_PROPERTIES"),
    commit_timeout_s=args.commit_timeout,
    commit_attempts=args.commit_attempts,
)
options = {"minPartitions": args.min_partitions} if args.min_partitions else {}
flights = flights_with_planes(spark, args.kafka, args.topic, args.planes, **options)
run(flights, sink, args.checkpoint)
