"""Departed flights, appended to a Delta table by each batch. With --writer the table records which batches it has."""

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
parser.add_argument("--table", required=True)
parser.add_argument("--checkpoint", required=True)
parser.add_argument("--writer", help="name under which the table records batches; without it, none is recorded")
args = parser.parse_args()

spark = (
    SparkSession.builder.appName("flights-to-delta")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)

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
    recorded = {} if args.writer is None else {"txnAppId": args.writer, "txnVersion": batch_id}
    batch.write.format("delta").options(**recorded).mode("append").save(args.table)


flights.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start().awaitTermination()
