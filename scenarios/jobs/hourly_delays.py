"""Delays of each hour, carrier and origin, kept up to date in a Postgres table: state in RocksDB, effectively once.

The state holds the totals: a batch replaces the total of each window that it touched. So no row depends on the watermark, and after a
lost checkpoint the state can be rebuilt from the input.
"""

from __future__ import annotations

from common import STATEFUL, departures, job_parser, run, spark_session
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from onceproof.sinks.postgres import PostgresUpsert

KEY = ["carrier", "origin", "hour"]

parser = job_parser(__doc__, topic="flights", postgres=None)
parser.add_argument("--table", default="hourly_delays", help="table with a unique key on carrier, origin and hour")
parser.add_argument("--watermark", default="3 days", help="how late a flight may come")


def totals(flights: DataFrame) -> DataFrame:
    """Flights, and the sum and maximum of their delays at departure (minutes), by the hour that they were scheduled for."""
    return (
        flights.groupBy("carrier", "origin", f.window("sched_dep", "1 hour").alias("window"))
        .agg(
            f.count("*").alias("flights"), f.sum("dep_delay").alias("delay_sum"), f.max("dep_delay").alias("delay_max")
        )
        .select("carrier", "origin", f.col("window.start").alias("hour"), "flights", "delay_sum", "delay_max")
    )


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("hourly-delays", STATEFUL)
    sink = PostgresUpsert(
        args.postgres,
        args.table,
        key=KEY,
        pipeline="hourly-delays",
        checkpoint=args.checkpoint,
        rebuilds_state=True,
    )
    flights = departures(spark, args.kafka, args.topic).withWatermark("sched_dep", args.watermark)
    run(totals(flights), sink, args.checkpoint, mode="update")


if __name__ == "__main__":
    main()
