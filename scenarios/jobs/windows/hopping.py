"""Departures of each origin in windows of an hour that begin every quarter of an hour, so that each flight is in four of them.

There is no state in Spark: each batch adds its counts to the windows in a Postgres table.
"""

from __future__ import annotations

import psycopg
from common import departures, job_parser, run, spark_session
from psycopg import sql
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from onceproof.sinks.postgres import PostgresUpsert

parser = job_parser(__doc__, naive=True, topic="flights", postgres=None)
parser.add_argument("--table", default="departures_per_hour", help="table with a unique key on origin and begins")


def counts(batch: DataFrame) -> DataFrame:
    """The flights of a batch, and the sum of their delays at departure (minutes), in each window that they are in."""
    return (
        batch.groupBy("origin", f.window("sched_dep", "1 hour", "15 minutes").alias("window"))
        .agg(f.count("*").alias("flights"), f.sum("dep_delay").alias("delay_sum"))
        .select("origin", f.col("window.start").alias("begins"), "flights", "delay_sum")
    )


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("hopping-windows")
    add = sql.SQL(
        "INSERT INTO {} AS t (origin, begins, flights, delay_sum)"
        " VALUES (%(origin)s, %(begins)s, %(flights)s, %(delay_sum)s) ON CONFLICT (origin, begins)"
        " DO UPDATE SET flights = t.flights + EXCLUDED.flights, delay_sum = t.delay_sum + EXCLUDED.delay_sum"
    ).format(sql.Identifier(args.table))

    def increment(batch: DataFrame, _batch_id: int) -> None:
        rows = counts(batch).toArrow().to_pylist()
        with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
            cursor.executemany(add, rows)

    flights = departures(spark, args.kafka, args.topic)
    if args.naive:
        run(flights, increment, args.checkpoint)
        return
    sink = PostgresUpsert(
        args.postgres,
        args.table,
        key=["origin", "begins"],
        merge={"flights": "sum", "delay_sum": "sum"},
        pipeline="hopping-windows",
        checkpoint=args.checkpoint,
    )
    run(flights, lambda batch, batch_id: sink(counts(batch), batch_id), args.checkpoint)


if __name__ == "__main__":
    main()
