"""Flights with their plane as it is now: one query keeps a table of the planes, the other looks each flight's plane up.

Which version it finds depends on when a batch runs: a batch that is replayed after a crash finds the planes of a later time.
"""

from __future__ import annotations

import psycopg
from common import departures, job_parser, read_topic, spark_session
from flights_with_versions import changes
from psycopg import sql
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from onceproof.sinks.postgres import PostgresAppend

parser = job_parser(__doc__, topic="flights", postgres=None, table="flights_planes")
parser.add_argument("--changes", default="plane_changes", help="input topic of the planes' changes")
parser.add_argument("--planes", required=True, help="Parquet file of the planes before any change")
parser.add_argument("--current", default="planes_now", help="table of the planes as they are now, by tail number")
args = parser.parse_args()

spark = spark_session("naive-flights-with-versions")
planes = spark.read.parquet(args.planes).selectExpr("tailnum", "0 AS version", "CAST(seats AS INT) AS seats").cache()
keep = sql.SQL(
    "INSERT INTO {} AS t (tailnum, version, seats) VALUES (%s, %s, %s) ON CONFLICT (tailnum)"
    " DO UPDATE SET version = EXCLUDED.version, seats = EXCLUDED.seats WHERE t.version < EXCLUDED.version"
).format(sql.Identifier(args.current))
current = sql.SQL("SELECT tailnum, version, seats FROM {}").format(sql.Identifier(args.current))


def update(batch: DataFrame, _batch_id: int) -> None:
    rows = batch.select("tailnum", "after.version", "after.seats").collect()
    with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
        cursor.executemany(keep, rows)


sink = PostgresAppend(args.postgres, args.table, pipeline="naive-versions", checkpoint=f"{args.checkpoint}/flights")


def look_up(batch: DataFrame, batch_id: int) -> None:
    with psycopg.connect(args.postgres) as connection:
        known = connection.execute(current).fetchall()
    now = spark.createDataFrame(known, "tailnum STRING, new_version INT, new_seats INT")
    rows = (
        batch.join(planes, "tailnum")
        .join(now, "tailnum", "left")
        .select(
            *("carrier", "flight", "origin", "sched_dep", "tailnum"),
            f.coalesce("new_version", "version").alias("version"),
            f.expr("CASE WHEN new_version IS NULL THEN seats ELSE new_seats END").alias("seats"),
        )
    )
    sink(rows, batch_id)


changed = changes(read_topic(spark, args.kafka, args.changes))
flights = departures(spark, args.kafka, args.topic)
for name, rows, write in (("changes", changed, update), ("flights", flights, look_up)):
    rows.writeStream.foreachBatch(write).option("checkpointLocation", f"{args.checkpoint}/{name}").start()
spark.streams.awaitAnyTermination()
