"""Generated records appended to a Postgres table, effectively once: the load of the benchmarks."""

from __future__ import annotations

from common import job_parser, read_topic, run, spark_session
from pyspark.sql import functions as f

from onceproof.sinks.postgres import PostgresAppend

parser = job_parser(__doc__, topic="numbers", postgres=None, table="numbers")
parser.add_argument("--pipeline", default="numbers-to-postgres", help="name under which the sink keeps its progress")
args = parser.parse_args()

spark = spark_session("numbers-to-postgres")
sink = PostgresAppend(args.postgres, args.table, pipeline=args.pipeline, checkpoint=args.checkpoint)
number = f.from_json(f.col("value").cast("string"), "id BIGINT, key STRING, seq BIGINT, payload STRING")
numbers = read_topic(spark, args.kafka, args.topic).select(number.alias("number")).select("number.*")
run(numbers, sink, args.checkpoint)
