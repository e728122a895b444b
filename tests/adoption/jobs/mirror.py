"""One topic copied to another: keys, values and headers as they are."""

import os

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("mirror").getOrCreate()
(
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", os.environ["KAFKA_BROKERS"])
    .option("subscribe", os.environ["SOURCE_TOPIC"])
    .option("startingOffsets", "earliest")
    .option("includeHeaders", "true")
    .load()
    .select("key", "value", "headers")
    .writeStream.format("kafka")
    .option("kafka.bootstrap.servers", os.environ["KAFKA_BROKERS"])
    .option("topic", os.environ["TARGET_TOPIC"])
    .option("includeHeaders", "true")
    .option("checkpointLocation", os.environ["CHECKPOINT_DIR"])
    .start()
    .awaitTermination()
)
