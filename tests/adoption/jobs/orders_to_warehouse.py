"""Shop orders, appended to the warehouse by Spark's own JDBC writer."""

import argparse
import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

parser = argparse.ArgumentParser()
parser.add_argument("--topic", default="orders")
parser.add_argument("--table", default="orders_raw")
parser.add_argument("--checkpoint", required=True)
args = parser.parse_args()

URL = f"jdbc:postgresql://{os.environ['PGHOST']}:{os.environ['PGPORT']}/{os.environ['PGDATABASE']}"
PROPERTIES = {
    "user": os.environ["PGUSER"],
    "password": os.environ["PGPASSWORD"],
    "driver": "org.postgresql.Driver",
}

spark = SparkSession.builder.appName("orders-to-warehouse").getOrCreate()
orders = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", os.environ["KAFKA_BOOTSTRAP_SERVERS"])
    .option("subscribe", args.topic)
    .option("startingOffsets", "earliest")
    .load()
    .select(
        F.from_json(
            F.col("value").cast("string"),
            "order_id BIGINT, customer STRING, item STRING, quantity INT, price DECIMAL(10,2)",
        ).alias("o")
    )
    .select("o.*")
)


def save(batch: DataFrame, batch_id: int) -> None:
    batch.write.jdbc(URL, args.table, mode="append", properties=PROPERTIES)


orders.writeStream.foreachBatch(save).option("checkpointLocation", args.checkpoint).start().awaitTermination()
