"""Departed flights to Postgres. A batch that cannot be written ends the job, which its supervisor restarts.

With --log-errors it is logged instead, so that the stream stays up.
"""

import argparse
import logging

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

log = logging.getLogger("departures")

parser = argparse.ArgumentParser()
parser.add_argument("--kafka", required=True)
parser.add_argument("--topic", required=True)
parser.add_argument("--database", required=True)
parser.add_argument("--checkpoint", required=True)
parser.add_argument("--log-errors", action="store_true")
args = parser.parse_args()

spark = SparkSession.builder.appName("departures").getOrCreate()

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
    .select(*COLUMNS)
)


def write(batch: DataFrame, batch_id: int) -> None:
    rows = batch.collect()
    try:
        with psycopg.connect(args.database) as connection, connection.cursor() as cursor:
            cursor.executemany(INSERT, rows)
    except psycopg.Error:
        if not args.log_errors:
            raise
        log.exception("batch %s: %s rows could not be written", batch_id, len(rows))


flights.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start().awaitTermination()
