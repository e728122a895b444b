"""Copies the records of two topics, which one query reads through two sources, to a third topic."""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession

kafka, orders, payments, target, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "1").getOrCreate()


def source(topic: str) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka)
    return reader.option("subscribe", topic).option("startingOffsets", "earliest").load().select("key", "value")


writer = source(orders).union(source(payments)).writeStream.format("kafka").option("kafka.bootstrap.servers", kafka)
writer.option("topic", target).option("checkpointLocation", checkpoint).start().awaitTermination()
