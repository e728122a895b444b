"""Copies a topic in one of Spark's modes that do not log each batch before and after it."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

kafka, source, target, checkpoint, mode = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "1").getOrCreate()
rows = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", kafka)
    .option("subscribe", source)
    .option("startingOffsets", "earliest")
    .load()
    .select("key", "value")
)
writer = (
    rows.writeStream.format("kafka")
    .option("kafka.bootstrap.servers", kafka)
    .option("topic", target)
    .option("checkpointLocation", checkpoint)
)
if mode == "async":
    writer = writer.option("asyncProgressTrackingEnabled", "true")
elif mode == "continuous":
    writer = writer.trigger(continuous="1 second")
else:
    writer = writer.outputMode("update").trigger(realTime="5 seconds")
writer.start().awaitTermination()
