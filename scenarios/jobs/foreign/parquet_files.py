"""Departed flights as Parquet files: written by Spark's own file sink or, with --by-batch, appended by each batch."""

import argparse

import kafka_login
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SCHEMA = """
    carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, dep_time INT, dep_delay INT,
    sched_dep TIMESTAMP
"""

parser = argparse.ArgumentParser()
parser.add_argument("--bootstrap-servers", required=True)
parser.add_argument("--topic", required=True)
parser.add_argument("--folder", required=True)
parser.add_argument("--checkpoint", required=True)
parser.add_argument("--by-batch", action="store_true")
args = parser.parse_args()

spark = SparkSession.builder.appName("flights-to-files").config("spark.sql.session.timeZone", "UTC").getOrCreate()

flights = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", args.bootstrap_servers)
    .options(**kafka_login.options())
    .option("subscribe", args.topic)
    .option("startingOffsets", "earliest")
    .load()
    .select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("flight"))
    .select("flight.*")
    .where("dep_time IS NOT NULL")
    .drop("dep_time")
)


def write(batch: DataFrame, batch_id: int) -> None:
    batch.write.mode("append").parquet(args.folder)


if args.by_batch:
    writer = flights.writeStream.foreachBatch(write)
else:
    writer = flights.writeStream.format("parquet").option("path", args.folder)
writer.option("checkpointLocation", args.checkpoint).start().awaitTermination()
