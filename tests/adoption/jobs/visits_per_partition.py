"""Visits counted per page in each partition's task, and added to the totals from there."""

import argparse
from collections import Counter
from collections.abc import Iterator

import psycopg
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

ADD = """
    INSERT INTO visits (page, visits) VALUES (%s, %s)
    ON CONFLICT (page) DO UPDATE SET visits = visits.visits + EXCLUDED.visits
"""

parser = argparse.ArgumentParser()
parser.add_argument("--kafka", required=True)
parser.add_argument("--postgres", required=True)
parser.add_argument("--checkpoint", required=True)
args = parser.parse_args()
dsn = args.postgres

spark = SparkSession.builder.appName("visits").getOrCreate()
pages = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", args.kafka)
    .option("subscribe", "visits")
    .option("startingOffsets", "earliest")
    .load()
    .select(F.get_json_object(F.col("value").cast("string"), "$.page").alias("page"))
)


def add(rows: Iterator[Row]) -> None:
    counts = Counter(row.page for row in rows)
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.executemany(ADD, sorted(counts.items()))


def write(batch: DataFrame, batch_id: int) -> None:
    batch.foreachPartition(add)


pages.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start().awaitTermination()
