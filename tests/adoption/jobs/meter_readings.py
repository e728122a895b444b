"""Meter readings: those that fit the schema go to one table, all others, as they came, to an error table."""

import argparse

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

parser = argparse.ArgumentParser()
parser.add_argument("--brokers", required=True)
parser.add_argument("--dsn", required=True)
parser.add_argument("--checkpoint-dir", required=True)
args = parser.parse_args()

spark = SparkSession.builder.appName("meter-readings").getOrCreate()
raw = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", args.brokers)
    .option("subscribe", "readings")
    .option("startingOffsets", "earliest")
    .load()
    .select(F.col("value").cast("string").alias("body"), "partition", "offset")
)
parsed = raw.withColumn("r", F.from_json("body", "reading_id BIGINT, meter STRING, watt_hours BIGINT"))
checked = parsed.withColumn("ok", F.col("r.reading_id").isNotNull() & F.col("r.watt_hours").isNotNull())


def store(batch: DataFrame, batch_id: int) -> None:
    batch.persist()
    good = batch.where("ok").select("r.reading_id", "r.meter", "r.watt_hours").collect()
    bad = batch.where("NOT ok").select("partition", "offset", "body").collect()
    batch.unpersist()
    with psycopg.connect(args.dsn) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO readings VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", good)
        cursor.executemany("INSERT INTO bad_readings VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", bad)


(
    checked.writeStream.foreachBatch(store)
    .option("checkpointLocation", args.checkpoint_dir)
    .trigger(processingTime="1 second")
    .start()
    .awaitTermination()
)
