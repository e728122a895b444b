"""Flights that departed, appended to a Delta table: effectively once."""

from __future__ import annotations

from common import departures, job_parser, run, spark_session

from onceproof.sinks.tasks.delta import DeltaAppend

parser = job_parser(__doc__, topic="flights")
parser.add_argument("--table", required=True, help="path of the Delta table")
args = parser.parse_args()

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # the default of 50 is for large tables
}
spark = spark_session("flights-to-delta", DELTA)
flights = departures(spark, args.kafka, args.topic).select(
    "carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "sched_dep"
)
run(flights, DeltaAppend(args.table, pipeline="flights-to-delta", checkpoint=args.checkpoint), args.checkpoint)
