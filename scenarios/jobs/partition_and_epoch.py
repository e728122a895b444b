"""Flights to Postgres with `foreach`: ``open(partition_id, epoch_id)`` returns False for what a table records as written.

Rows and record are one transaction, as Spark's guide proposed until SPARK-28650. But partition and epoch number the tasks of one
start and the batches of one checkpoint. ``--rows-per-task`` changes the number of tasks from start to start; ``--by-record`` is
the remedy: the table's unique key recognises what is written.
"""

from __future__ import annotations

import psycopg
from common import COLUMNS, flights_with_planes, insert_into, job_parser, kafka_security, spark_session
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import Row

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="departures")
parser.add_argument("--rows-per-task", type=int, help="start with one more task for each so many records in the topic")
parser.add_argument("--by-record", action="store_true", help="recognise written rows by their source position")
args = parser.parse_args()

postgres, by_record = args.postgres, args.by_record
insert = insert_into(args.table, COLUMNS, "ON CONFLICT (src_partition, src_offset) DO NOTHING" if by_record else "")


class Writer:
    """Writes one partition of one batch."""

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.written = (partition_id, epoch_id)
        self.connection = psycopg.connect(postgres)
        done = "SELECT FROM written WHERE partition = %s AND epoch = %s"
        return by_record or self.connection.execute(done, self.written).fetchone() is None

    def process(self, row: Row) -> None:
        self.connection.execute(insert, row)

    def close(self, error: Exception | None) -> None:
        if error is None:
            record = "INSERT INTO written (partition, epoch) VALUES (%s, %s) ON CONFLICT DO NOTHING"
            self.connection.execute(record, self.written)
            self.connection.commit()
        self.connection.close()


def records_in(topic: str) -> int:
    """How many records the topic has now."""
    settings = {"bootstrap.servers": args.kafka, "group.id": "partition-and-epoch"}
    consumer = Consumer({**settings, **kafka_security("LIBRDKAFKA_PROPERTIES")})
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, number))[1]
        for number in consumer.list_topics(topic).topics[topic].partitions
    ]
    consumer.close()
    return sum(ends)


# More to catch up with, more tasks.
tasks = 1 + records_in(args.topic) // args.rows_per_task if args.rows_per_task else 1
spark = spark_session("partition-and-epoch")
flights = flights_with_planes(spark, args.kafka, args.topic, args.planes, minPartitions=str(tasks))
flights.writeStream.foreach(Writer()).option("checkpointLocation", args.checkpoint).start().awaitTermination()
