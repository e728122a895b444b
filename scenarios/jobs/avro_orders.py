"""Orders in Avro, written with an older and a newer schema, to Postgres or to another topic in Avro.

Each value begins with Confluent's header: a zero byte and the id of the schema with which it was written. Every value is read as
the newest schema, so an older one has its defaults.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
from common import appending, job_parser, read_topic, run, run_to_topic, spark_session
from pyspark.sql import Column
from pyspark.sql import functions as f

ROW = "order_id BIGINT, customer STRING, amount DECIMAL(12, 2), ordered_at TIMESTAMP, currency STRING"
HEADER = 5

parser = job_parser(__doc__, naive=True, topic=None)
parser.add_argument("--older", required=True, help="file of the older schema, whose id is 1")
parser.add_argument("--newer", required=True, help="file of the newer schema, whose id is 2")
parser.add_argument("--postgres", help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", help="table to append to")
parser.add_argument("--output", help="topic to write to in Avro, instead of a table")
args = parser.parse_args()


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


schemas = [json.loads(Path(file).read_text(encoding="utf-8")) for file in (args.older, args.newer)]
spark = spark_session("avro-orders")
orders = read_topic(spark, args.kafka, args.topic).select(reader(schemas)(f.col("value")).alias("row")).select("row.*")
if args.output is not None:
    value = writer(schemas)(f.struct("*", f.unix_millis("ordered_at").alias("ordered_at_ms")))
    records = orders.select(f.col("customer").alias("key"), value.alias("value"))
    run_to_topic(records, args.kafka, args.output, args.checkpoint)
else:
    run(orders, appending(args, "avro-orders"), args.checkpoint)
