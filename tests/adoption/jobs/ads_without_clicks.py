"""Each shown ad with its click, or without one once no click can come any more: a left join of two streams."""

import argparse

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

parser = argparse.ArgumentParser()
parser.add_argument("--kafka", required=True)
parser.add_argument("--postgres", required=True)
parser.add_argument("--checkpoint", required=True)
args = parser.parse_args()

spark = (
    SparkSession.builder.appName("ads")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)


def stream(topic: str, schema: str, at: str) -> DataFrame:
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", args.kafka)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .select(F.from_json(F.col("value").cast("string"), schema).alias("v"))
        .select("v.*")
        .withWatermark(at, "30 seconds")
    )


shown = stream("shown", "ad_id BIGINT, page STRING, shown_at TIMESTAMP", "shown_at")
clicked = stream("clicked", "click_id BIGINT, ad BIGINT, clicked_at TIMESTAMP", "clicked_at")
joined = shown.join(
    clicked,
    F.expr("ad = ad_id AND clicked_at BETWEEN shown_at AND shown_at + INTERVAL 1 MINUTE"),
    "leftOuter",
).select("ad_id", "page", "click_id")


def write(batch: DataFrame, batch_id: int) -> None:
    with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO ads VALUES (%s, %s, %s)", batch.collect())


joined.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start().awaitTermination()
