"""Flights to Postgres: each batch is limited, to protect the driver's memory from a large one. ``--limit=0`` is the remedy."""

from __future__ import annotations

import psycopg
from common import COLUMNS, flights_with_planes, insert_into, job_parser, run, spark_session
from pyspark.sql import DataFrame

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None)
parser.add_argument("--table", default="departures", help="table with a unique key on the source position")
parser.add_argument("--limit", type=int, default=500, help="most rows per batch; 0: no limit")
args = parser.parse_args()

spark = spark_session("limited-batch")
insert = insert_into(args.table, COLUMNS, "ON CONFLICT (src_partition, src_offset) DO NOTHING")


def write(batch: DataFrame, _batch_id: int) -> None:
    # "The rest comes with the next batch."
    rows = (batch.limit(args.limit) if args.limit else batch).collect()
    with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
        cursor.executemany(insert, rows)


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
