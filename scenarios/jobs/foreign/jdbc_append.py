"""Departed flights, appended to a warehouse table by Spark's own JDBC writer."""

import argparse

import kafka_login
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SCHEMA = """
    carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, dep_time INT, dep_delay INT, distance INT,
    sched_dep TIMESTAMP
"""

parser = argparse.ArgumentParser()
parser.add_argument("--bootstrap-servers", required=True)
parser.add_argument("--topic", required=True)
parser.add_argument("--jdbc-url", required=True)
parser.add_argument("--table", required=True)
parser.add_argument("--checkpoint", required=True)
args = parser.parse_args()

spark = SparkSession.builder.appName("flights-to-warehouse").config("spark.sql.session.timeZone", "UTC").getOrCreate()

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
    (
        batch.write.format("jdbc")
        .option("url", args.jdbc_url)
        .option("driver", "org.postgresql.Driver")
        .option("dbtable", args.table)
        .mode("append")
        .save()
    )


flights.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start().awaitTermination()
