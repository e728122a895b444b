"""Flights to Postgres with `foreach`: ``open(partition_id, epoch_id)`` returns False for what a table records as written.

Rows and record are one transaction, as Spark's guide proposes. But partition and epoch number the batches of one checkpoint.
"""

from __future__ import annotations

import psycopg
from common import COLUMNS, flights_with_planes, insert_into, job_parser, spark_session
from pyspark.sql import Row

args = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="departures").parse_args()

postgres = args.postgres
insert = insert_into(args.table, COLUMNS)


class Writer:
    """Writes one partition of one batch."""

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.written = (partition_id, epoch_id)
        self.connection = psycopg.connect(postgres)
        done = "SELECT FROM written WHERE partition = %s AND epoch = %s"
        return self.connection.execute(done, self.written).fetchone() is None

    def process(self, row: Row) -> None:
        self.connection.execute(insert, row)

    def close(self, error: Exception | None) -> None:
        if error is None:
            record = "INSERT INTO written (partition, epoch) VALUES (%s, %s) ON CONFLICT DO NOTHING"
            self.connection.execute(record, self.written)
            self.connection.commit()
        self.connection.close()


spark = spark_session("partition-and-epoch")
flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
flights.writeStream.foreach(Writer()).option("checkpointLocation", args.checkpoint).start().awaitTermination()
