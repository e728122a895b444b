"""Sensor values above their limit, sent on by a producer of our own within `foreach`."""

import argparse
import json

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

parser = argparse.ArgumentParser()
parser.add_argument("--bootstrap-servers", required=True)
parser.add_argument("--checkpoint", required=True)
args = parser.parse_args()


class Send:
    def __init__(self, servers: str) -> None:
        self.servers = servers

    def open(self, partition_id: int, epoch_id: int) -> bool:
        from confluent_kafka import Producer  # not at the top: a class with it in reach cannot be pickled

        self.producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True})
        return True

    def process(self, row: Row) -> None:
        self.producer.produce("alerts", key=row.sensor, value=json.dumps(row.asDict()))

    def close(self, error: Exception | None) -> None:
        if self.producer.flush(30):
            raise RuntimeError("alerts were not delivered")


spark = SparkSession.builder.appName("alerts").getOrCreate()
(
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", args.bootstrap_servers)
    .option("subscribe", "sensors")
    .option("startingOffsets", "earliest")
    .load()
    .select(F.from_json(F.col("value").cast("string"), "n BIGINT, sensor STRING, celsius DOUBLE").alias("v"))
    .select("v.*")
    .where("celsius > 80")
    .writeStream.foreach(Send(args.bootstrap_servers))
    .option("checkpointLocation", args.checkpoint)
    .start()
    .awaitTermination()
)
