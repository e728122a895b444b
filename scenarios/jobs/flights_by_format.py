"""Flights that departed, enriched with their planes, written by a streaming format: effectively once, without ``foreachBatch``.

With ``--postgres`` to a table, with ``--output`` to a topic.
"""

from __future__ import annotations

from common import flights_with_planes, job_parser, kafka_security, spark_session

from onceproof.sinks.tasks.formats import register

parser = job_parser(__doc__, topic="flights", planes=None, table="departures", progress="departures-progress")
parser.add_argument("--postgres", help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--output", help="topic to write to")
args = parser.parse_args()

spark = spark_session("flights-by-format")
register(spark)
if args.postgres:
    options = {"conninfo": args.postgres, "table": args.table, "commit_timeout_s": "2"}
else:
    options = {
        "kafka.bootstrap.servers": args.kafka,
        "topic": args.output,
        "progress_topic": args.progress,
        "source": "src_partition, src_offset",
        "key": "tailnum",
        "commit_timeout_s": "2",
        "commit_attempts": "1",
        **{f"kafka.{name}": value for name, value in kafka_security("LIBRDKAFKA_PROPERTIES").items()},
    }
flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
query = flights.writeStream.format("onceproof-postgres" if args.postgres else "onceproof-kafka").options(**options)
query = query.option("pipeline", "flights-by-format").option("checkpointLocation", args.checkpoint)
query.start().awaitTermination()
