"""Departed flights to a table, for queries, and to a topic, for consumers that need them at once: from one batch."""

import argparse

import kafka_login
import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

COLUMNS = ("carrier", "flight", "tailnum", "origin", "dest", "sched_dep", "dep_delay")
SCHEMA = """
    carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, sched_dep STRING, dep_delay INT,
    dep_time INT
"""
INSERT = f"""
    INSERT INTO departures ({", ".join(COLUMNS)}) VALUES ({", ".join(["%s"] * len(COLUMNS))})
    ON CONFLICT (carrier, flight, origin, sched_dep) DO NOTHING
"""

parser = argparse.ArgumentParser()
parser.add_argument("--kafka", required=True)
parser.add_argument("--input", required=True)
parser.add_argument("--output", required=True)
parser.add_argument("--database", required=True)
parser.add_argument("--checkpoint", required=True)
args = parser.parse_args()

spark = SparkSession.builder.appName("departures").getOrCreate()

flights = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", args.kafka)
    .options(**kafka_login.options())
    .option("subscribe", args.input)
    .option("startingOffsets", "earliest")
    .load()
    .select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("flight"))
    .select("flight.*")
    .where("dep_time IS NOT NULL")
    .select(*COLUMNS)
)


def write(batch: DataFrame, batch_id: int) -> None:
    batch.persist()
    with psycopg.connect(args.database) as connection, connection.cursor() as cursor:
        cursor.executemany(INSERT, batch.toLocalIterator())
    (
        batch.select(
            F.col("tailnum").alias("key"), F.to_json(F.struct(*COLUMNS), {"ignoreNullFields": "false"}).alias("value")
        )
        .write.format("kafka")
        .option("kafka.bootstrap.servers", args.kafka)
        .options(**kafka_login.options())
        .option("topic", args.output)
        .save()
    )
    batch.unpersist()


flights.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start().awaitTermination()
