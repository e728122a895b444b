"""Departed flights to one table, the last departure of each plane to another: two queries, the second once the first runs."""

import argparse

import kafka_login
import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SCHEMA = """
    carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, sched_dep STRING, dep_delay INT,
    dep_time INT
"""
APPEND = """
    INSERT INTO departures (carrier, flight, tailnum, origin, dest, sched_dep, dep_delay)
    VALUES (%s, %s, %s, %s, %s, %s, %s)
"""
UPSERT = """
    INSERT INTO last_seen (tailnum, dest, sched_dep) VALUES (%s, %s, %s)
    ON CONFLICT (tailnum) DO UPDATE SET dest = EXCLUDED.dest, sched_dep = EXCLUDED.sched_dep
"""

parser = argparse.ArgumentParser()
parser.add_argument("--kafka", required=True)
parser.add_argument("--topic", required=True)
parser.add_argument("--database", required=True)
parser.add_argument("--checkpoints", required=True, help="folder with one checkpoint per query")
args = parser.parse_args()

spark = SparkSession.builder.appName("departures-and-fleet").getOrCreate()

flights = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", args.kafka)
    .options(**kafka_login.options())
    .option("subscribe", args.topic)
    .option("startingOffsets", "earliest")
    .load()
    .select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("flight"))
    .select("flight.*")
    .where("dep_time IS NOT NULL")
)


def execute(statement: str, batch: DataFrame) -> None:
    with psycopg.connect(args.database) as connection, connection.cursor() as cursor:
        cursor.executemany(statement, batch.toLocalIterator())


def append(batch: DataFrame, batch_id: int) -> None:
    execute(APPEND, batch)


def upsert(batch: DataFrame, batch_id: int) -> None:
    execute(UPSERT, batch)


departures = (
    flights.select("carrier", "flight", "tailnum", "origin", "dest", "sched_dep", "dep_delay")
    .writeStream.queryName("departures")
    .foreachBatch(append)
    .option("checkpointLocation", f"{args.checkpoints}/departures")
    .start()
)
# The fleet's view may lag: first catch up with the departures.
departures.processAllAvailable()
fleet = (
    flights.where("tailnum IS NOT NULL")
    .select("tailnum", "dest", "sched_dep")
    .writeStream.queryName("fleet")
    .foreachBatch(upsert)
    .option("checkpointLocation", f"{args.checkpoints}/fleet")
    .start()
)
spark.streams.awaitAnyTermination()
