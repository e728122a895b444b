"""A job that catches its sink's errors, logs them and goes on: alive, green, and losing a batch."""

from __future__ import annotations

import argparse
import logging

import psycopg
from common import COLUMNS, flights_with_planes, spark_session
from psycopg import sql
from pyspark.sql import DataFrame

parser = argparse.ArgumentParser(description=__doc__)
for name in ("kafka", "topic", "planes", "postgres", "table", "checkpoint"):
    parser.add_argument(f"--{name}", required=True)


def main() -> None:
    args = parser.parse_args()
    insert = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(args.table), sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
    )

    def append(batch: DataFrame, batch_id: int) -> None:
        rows = batch.collect()
        try:
            with (
                psycopg.connect(args.postgres) as connection,
                connection.cursor() as cursor,
                cursor.copy(insert) as copy,
            ):
                for row in rows:
                    copy.write_row(row)
        except psycopg.Error:
            logging.exception("batch %s could not be written", batch_id)

    flights = flights_with_planes(spark_session("swallows-errors"), args.kafka, args.topic, args.planes)
    flights.writeStream.foreachBatch(append).option("checkpointLocation", args.checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
