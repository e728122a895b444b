"""Orders in Avro, written with an older and a newer schema, to Postgres or to another topic in Avro.

Each value begins with Confluent's header: a zero byte and the id of the schema with which it was written. Every value is read as
the newest schema, so an older one has its defaults.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
from common import plain_append, read_topic, spark_kafka_security, spark_session
from pyspark.sql import Column
from pyspark.sql import functions as f

from onceproof.sinks.postgres import PostgresAppend

ROW = "order_id BIGINT, customer STRING, amount DECIMAL(12, 2), ordered_at TIMESTAMP, currency STRING"
HEADER = 5

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", required=True, help="input topic")
parser.add_argument("--older", required=True, help="file of the older schema, whose id is 1")
parser.add_argument("--newer", required=True, help="file of the newer schema, whose id is 2")
parser.add_argument("--postgres", help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", help="table to append to")
parser.add_argument("--naive", action="store_true", help="append without remembering which batches were written")
parser.add_argument("--output", help="topic to write to in Avro, instead of a table")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")


def reader(schemas: list[dict[str, Any]]) -> Callable[[Column], Column]:
    """Bytes with a header -> a row, by the schema of the header's id, resolved to the newest one."""

    def read(value: bytes) -> dict[str, Any]:
        written = schemas[int.from_bytes(value[1:HEADER], "big") - 1]
        record: Any = fastavro.schemaless_reader(io.BytesIO(value[HEADER:]), written, schemas[-1])
        return {**record, "ordered_at": record["ordered_at"].replace(tzinfo=None)}  # the session's time zone is UTC

    return f.udf(read, ROW)


def writer(schemas: list[dict[str, Any]]) -> Callable[[Column], Column]:
    """A row -> bytes with a header, by the newest schema."""

    def write(row: Any) -> bytes:
        out = io.BytesIO()
        order = {**row.asDict(), "amount": Decimal(row.amount)}
        # Milliseconds since 1970: fastavro would take a timestamp without a zone for one of the machine's zone.
        order["ordered_at"] = row.ordered_at_ms
        fastavro.schemaless_writer(out, schemas[-1], order)
        return b"\0" + len(schemas).to_bytes(4, "big") + out.getvalue()

    return f.udf(write, "BINARY")


def main() -> None:
    args = parser.parse_args()
    schemas = [json.loads(Path(file).read_text(encoding="utf-8")) for file in (args.older, args.newer)]
    spark = spark_session("avro-orders")
    orders = (
        read_topic(spark, args.kafka, args.topic).select(reader(schemas)(f.col("value")).alias("row")).select("row.*")
    )
    if args.output is not None:
        value = writer(schemas)(f.struct("*", f.unix_millis("ordered_at").alias("ordered_at_ms")))
        records = orders.select(f.col("customer").alias("key"), value.alias("value"))
        stream = (
            records.writeStream.format("kafka")
            .option("kafka.bootstrap.servers", args.kafka)
            .options(**spark_kafka_security())
            .option("topic", args.output)
        )
    elif args.naive:
        stream = orders.writeStream.foreachBatch(plain_append(args.postgres, args.table))
    else:
        stream = orders.writeStream.foreachBatch(
            PostgresAppend(args.postgres, args.table, pipeline="avro-orders", checkpoint=args.checkpoint)
        )
    stream.option("checkpointLocation", args.checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
