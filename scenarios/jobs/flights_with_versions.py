"""Flights with their plane as it was at departure: joined with the planes' changelog by the time each version was valid.

Only the change that ends a version shows until when the version was valid. So a flight waits in the state for that change,
and the result depends on the contents of the logs, never on when they were read.
"""

from __future__ import annotations

from common import STATEFUL, departures, job_parser, read_topic, run, spark_session
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from onceproof.sinks.postgres import PostgresAppend

VERSION = "STRUCT<version: INT, seats: INT, valid_from: TIMESTAMP>"
CHANGE = f"tailnum STRING, changed_at TIMESTAMP, before {VERSION}, after {VERSION}"


parser = job_parser(__doc__, topic="flights", postgres=None, table="flights_planes")
parser.add_argument("--changes", default="plane_changes", help="input topic of the planes' changes")


def changes(records: DataFrame) -> DataFrame:
    """The changelog: columns of `CHANGE`."""
    return records.select(f.from_json(f.col("value").cast("string"), CHANGE).alias("c")).select("c.*")


def with_versions(flights: DataFrame, changed: DataFrame) -> DataFrame:
    """Flights of known planes, each with the version that was valid at its scheduled departure."""
    versions = changed.select(
        f.col("tailnum").alias("plane"), "before.version", "before.seats", "before.valid_from", "changed_at"
    ).withWatermark("changed_at", "3 days")
    # No version is valid for more than four days: that is how long a flight has to be kept.
    valid = "valid_from <= sched_dep AND sched_dep < changed_at AND changed_at <= sched_dep + INTERVAL 4 DAYS"
    return (
        flights.withWatermark("sched_dep", "3 days")
        .join(versions, f.expr(f"tailnum = plane AND {valid}"))
        .select("carrier", "flight", "origin", "sched_dep", "tailnum", "version", "seats")
    )


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("flights-with-versions", STATEFUL)
    sink = PostgresAppend(args.postgres, args.table, pipeline="flights-with-versions", checkpoint=args.checkpoint)
    flights = departures(spark, args.kafka, args.topic)
    rows = with_versions(flights, changes(read_topic(spark, args.kafka, args.changes)))
    run(rows, sink, args.checkpoint)


if __name__ == "__main__":
    main()
