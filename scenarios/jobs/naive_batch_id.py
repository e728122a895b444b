"""Flights to Postgres, "exactly once" by the number of the batch: the job skips a number that it has recorded.

The rows and the number are one transaction, so a plain replay does no harm. But the number belongs to the checkpoint: a new
checkpoint counts from 0 again, and with ``--by-query`` (as with a transaction id made of Spark's query id) a checkpoint that
has lost its id looks like another query's.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import psycopg
from common import flights_with_planes, spark_session
from psycopg import sql
from pyspark.sql import DataFrame

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", default="flights", help="input topic")
parser.add_argument("--planes", required=True, help="Parquet file of the planes")
parser.add_argument("--postgres", required=True, help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", default="departures", help="table to append to")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")
parser.add_argument("--by-query", action="store_true", help="count by Spark's query id, not by the pipeline's name")

LAST = "SELECT last FROM batches_done WHERE writer = %s FOR UPDATE"
RECORD = """
    INSERT INTO batches_done (writer, last) VALUES (%s, %s) ON CONFLICT (writer) DO UPDATE SET last = EXCLUDED.last
"""


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("naive-batch-id")

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = batch.collect()
        query_id = json.loads((Path(args.checkpoint) / "metadata").read_text())["id"]
        writer = query_id if args.by_query else "flights"
        copy_in = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(args.table), sql.SQL(", ").join(map(sql.Identifier, batch.columns))
        )
        with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
            found = cursor.execute(LAST, (writer,)).fetchone()
            if found is not None and batch_id <= found[0]:
                return
            with cursor.copy(copy_in) as copy:
                for row in rows:
                    copy.write_row(row)
            cursor.execute(RECORD, (writer, batch_id))

    flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
    query = flights.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
