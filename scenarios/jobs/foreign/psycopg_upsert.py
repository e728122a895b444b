"""The last departure of each plane, upserted into Postgres by the executors."""

import argparse
import os
from collections.abc import Iterator

import kafka_login
import psycopg
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

SCHEMA = "tailnum STRING, carrier STRING, flight INT, origin STRING, dest STRING, dep_time INT, sched_dep TIMESTAMP"

UPSERT = """
    INSERT INTO last_seen (tailnum, carrier, flight, origin, dest, sched_dep)
    VALUES (%s, %s, %s, %s, %s, %s)
    ON CONFLICT (tailnum) DO UPDATE SET
      carrier = EXCLUDED.carrier, flight = EXCLUDED.flight, origin = EXCLUDED.origin, dest = EXCLUDED.dest,
      sched_dep = EXCLUDED.sched_dep
"""

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint", required=True)
args = parser.parse_args()

DATABASE_URL = os.environ["DATABASE_URL"]

spark = SparkSession.builder.appName("last-seen").config("spark.sql.session.timeZone", "UTC").getOrCreate()

flights = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", os.environ["KAFKA_BOOTSTRAP_SERVERS"])
    .options(**kafka_login.options())
    .option("subscribe", os.environ["FLIGHTS_TOPIC"])
    .option("startingOffsets", "earliest")
    .load()
    .select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("flight"))
    .select("flight.*")
    .where("dep_time IS NOT NULL AND tailnum IS NOT NULL")
    # As text: a worker's datetime would be in the worker's own time zone.
    .select("tailnum", "carrier", "flight", "origin", "dest", F.date_format("sched_dep", "yyyy-MM-dd'T'HH:mm:ssXXX"))
)


def upsert(rows: Iterator[Row]) -> None:
    with psycopg.connect(DATABASE_URL) as connection, connection.cursor() as cursor:
        cursor.executemany(UPSERT, rows)


def write(batch: DataFrame, batch_id: int) -> None:
    batch.foreachPartition(upsert)


flights.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start().awaitTermination()
