"""Departed flights from one topic to another, with Spark's built-in Kafka sink."""

import os

import kafka_login
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

SERVERS = os.environ["KAFKA_BOOTSTRAP_SERVERS"]
SCHEMA = "carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, dep_time INT, sched_dep STRING"

spark = SparkSession.builder.appName("departures").getOrCreate()

departures = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", SERVERS)
    .options(**kafka_login.options())
    .option("subscribe", os.environ["FLIGHTS_TOPIC"])
    .option("startingOffsets", "earliest")
    .load()
    .withColumn("flight", F.from_json(F.col("value").cast("string"), SCHEMA))
    .where("flight.dep_time IS NOT NULL")
    .select("key", F.to_json("flight", {"ignoreNullFields": "false"}).alias("value"))
)

query = (
    departures.writeStream.format("kafka")
    .option("kafka.bootstrap.servers", SERVERS)
    .options(**kafka_login.options())
    .option("topic", os.environ["DEPARTURES_TOPIC"])
    .option("checkpointLocation", os.environ["CHECKPOINT"])
    .start()
)
query.awaitTermination()
