"""Flights to a table and to a topic, from one batch: the table records which batches are done, for both.

The job skips a batch that the table has, for the topic too. So if the driver dies between the two, the topic never gets the
batch, and nothing ever compares the two.
"""

from __future__ import annotations

import argparse

import psycopg
from common import flights_with_planes, spark_kafka_security, spark_session
from psycopg import sql
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", default="flights", help="input topic")
parser.add_argument("--planes", required=True, help="Parquet file of the planes")
parser.add_argument("--postgres", required=True, help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", default="departures", help="table to append to")
parser.add_argument("--output", default="departures", help="topic to write to")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("naive-two-sinks")

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = batch.collect()
        copy_in = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(args.table), sql.SQL(", ").join(map(sql.Identifier, batch.columns))
        )
        with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO batches_done (batch) VALUES (%s) ON CONFLICT DO NOTHING", (batch_id,))
            if cursor.rowcount == 0:
                return
            with cursor.copy(copy_in) as copy:
                for row in rows:
                    copy.write_row(row)
        value = f.to_json(f.struct(*batch.columns), {"ignoreNullFields": "false"})
        records = batch.select(f.col("tailnum").alias("key"), value.alias("value"))
        options = {"kafka.bootstrap.servers": args.kafka, "topic": args.output, **spark_kafka_security()}
        records.write.format("kafka").options(**options).save()

    flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
    query = flights.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
