"""One transformation, run as a stream into Postgres or, for the oracle, once as a batch over Parquet."""

from __future__ import annotations

import argparse

from common import FLIGHT, read_topic, spark_session
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from onceproof.sinks.postgres import PostgresAppend

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--planes", required=True, help="Parquet file of the planes")
parser.add_argument("--kafka", help="bootstrap servers")
parser.add_argument("--topic", default="flights", help="input topic")
parser.add_argument("--postgres", help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", default="departures", help="table to append to")
parser.add_argument("--checkpoint", help="checkpoint folder of the query")
parser.add_argument("--batch", help="run once as a batch, over this Parquet file of the committed records")
parser.add_argument("--to", help="with --batch: the Parquet folder to write")


def departed(records: DataFrame, planes: DataFrame) -> DataFrame:
    """Flights that departed, with their plane's maker; ``records`` have the columns of Spark's Kafka source."""
    flight = f.from_json(f.col("value").cast("string"), FLIGHT)
    return (
        records.select("partition", "offset", flight.alias("flight"))
        .where("flight.dep_time IS NOT NULL")
        .select(
            f.col("partition").alias("src_partition"),
            f.col("offset").alias("src_offset"),
            *("flight.tailnum", "flight.origin", "flight.sched_dep", "flight.dep_delay"),
        )
        .join(f.broadcast(planes.select("tailnum", "manufacturer")), "tailnum", "left")
    )


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("either-way")
    planes = spark.read.parquet(args.planes)
    if args.batch:
        departed(spark.read.parquet(args.batch), planes).write.parquet(args.to)
        return
    sink = PostgresAppend(args.postgres, args.table, pipeline="either-way", checkpoint=args.checkpoint)
    rows = departed(read_topic(spark, args.kafka, args.topic), planes).withColumn("loaded_at", f.current_timestamp())
    rows.writeStream.foreachBatch(sink).option("checkpointLocation", args.checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
