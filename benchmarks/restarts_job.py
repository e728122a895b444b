"""The job of `restarts.py`: each batch into two tables, appended to one, and written to the other with a row of progress."""

import argparse

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

parser = argparse.ArgumentParser()
parser.add_argument("--kafka", required=True)
parser.add_argument("--topic", required=True)
parser.add_argument("--postgres", required=True)
parser.add_argument("--checkpoint", required=True)
args = parser.parse_args()

spark = SparkSession.builder.appName("restarts").getOrCreate()
numbers = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", args.kafka)
    .option("subscribe", args.topic)
    .option("startingOffsets", "earliest")
    .load()
    .select(f.from_json(f.col("value").cast("string"), "id BIGINT, key STRING, seq BIGINT, payload STRING").alias("n"))
    .select("n.*")
)


def write(batch: DataFrame, batch_id: int) -> None:
    rows = [tuple(row) for row in batch.collect()]
    with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO appended VALUES (%s, %s, %s, %s)", rows)
    with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT last FROM progress FOR UPDATE")
        found = cursor.fetchone()
        if found is None or found[0] >= batch_id:
            return
        cursor.executemany("INSERT INTO once VALUES (%s, %s, %s, %s)", rows)
        cursor.execute("UPDATE progress SET last = %s", (batch_id,))


numbers.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start().awaitTermination()
