"""Flights to Postgres with their offsets in the same database: progress is written first, then the rows.

By default each is its own transaction: a driver that dies between the two has recorded progress without its rows.
``--one-transaction`` is the remedy: the same statements in the same order, and one COMMIT.
"""

from __future__ import annotations

import argparse

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
parser.add_argument("--one-transaction", action="store_true", help="progress and rows in one transaction")

RECORD = """
    INSERT INTO positions (partition, end_offset) VALUES (%s, %s)
    ON CONFLICT (partition) DO UPDATE SET end_offset = EXCLUDED.end_offset
"""


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("progress-first")

    def write(batch: DataFrame, _batch_id: int) -> None:
        rows = batch.collect()
        copy_in = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(args.table), sql.SQL(", ").join(map(sql.Identifier, batch.columns))
        )
        with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
            done: dict[int, int] = dict(
                cursor.execute("SELECT partition, end_offset FROM positions FOR UPDATE").fetchall()
            )
            new = [row for row in rows if row.src_offset >= done.get(row.src_partition, 0)]
            ends: dict[int, int] = {}
            for row in new:
                ends[row.src_partition] = max(ends.get(row.src_partition, 0), row.src_offset + 1)
            for position in ends.items():
                cursor.execute(RECORD, position)
            if not args.one_transaction:
                connection.commit()
            with cursor.copy(copy_in) as copy:
                for row in new:
                    copy.write_row(row)

    flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
    query = flights.writeStream.foreachBatch(write).option("checkpointLocation", args.checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
