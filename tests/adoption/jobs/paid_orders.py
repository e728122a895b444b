"""Purchases joined with their payments; what is paid goes to the shipping topic and to the ledger."""

import argparse

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

parser = argparse.ArgumentParser()
parser.add_argument("--kafka", required=True)
parser.add_argument("--db", required=True)
parser.add_argument("--checkpoint", required=True)
args = parser.parse_args()

spark = SparkSession.builder.appName("paid-orders").config("spark.sql.shuffle.partitions", "2").getOrCreate()


def stream(topic: str, schema: str) -> DataFrame:
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", args.kafka)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .select(F.from_json(F.col("value").cast("string"), schema).alias("v"))
        .select("v.*")
    )


purchases = stream("purchases", "purchase_id BIGINT, buyer STRING, bought_at TIMESTAMP").withWatermark(
    "bought_at", "1 minute"
)
payments = stream("payments", "payment_id BIGINT, purchase BIGINT, cents BIGINT, paid_at TIMESTAMP").withWatermark(
    "paid_at", "1 minute"
)
paid = purchases.join(
    payments,
    F.expr("purchase = purchase_id AND paid_at BETWEEN bought_at AND bought_at + INTERVAL 5 MINUTES"),
).select("purchase_id", "payment_id", "buyer", "cents")


def write(batch: DataFrame, batch_id: int) -> None:
    batch.persist()
    (
        batch.select(F.col("buyer").alias("key"), F.to_json(F.struct("*")).alias("value"))
        .write.format("kafka")
        .option("kafka.bootstrap.servers", args.kafka)
        .option("topic", "to_ship")
        .save()
    )
    with psycopg.connect(args.db) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO ledger VALUES (%s, %s, %s, %s)", batch.collect())
    batch.unpersist()


paid.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start().awaitTermination()
