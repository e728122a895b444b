"""Flights to Postgres from the tasks, effectively once: each attempt stages its rows, and the driver publishes the winners'.

Spark gives the driver the result of one attempt at each task, the one that it counts. So a task returns the name under which
it staged its rows, and the driver publishes only rows of those names, in one transaction with a record of the batch. The rows
of lost attempts are never read. (Spark's own file sink works this way: a manifest names the files that count.)
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

import psycopg
from common import departures, job_parser, names, run
from psycopg import sql
from pyspark.sql import DataFrame, Row, SparkSession

COLUMNS = ["src_partition", "src_offset", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay"]

parser = job_parser(__doc__, topic="flights", postgres=None, table="departures")
parser.add_argument("--master", help="where tasks run (default: where the environment says)")
args = parser.parse_args()

STAGE = """
    INSERT INTO staged (attempt, src_partition, src_offset, carrier, flight, tailnum, origin, dest, dep_delay)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
"""


builder = SparkSession.builder.appName("staged-partitions")
spark = (builder.master(args.master) if args.master else builder).getOrCreate()
postgres, stage_row = args.postgres, STAGE
publish = sql.SQL("INSERT INTO {table} ({columns}) SELECT {columns} FROM staged WHERE attempt = ANY(%s)").format(
    table=sql.Identifier(args.table), columns=names(COLUMNS)
)


def stage(rows: Iterable[Row]) -> Iterator[str]:
    attempt = uuid.uuid4().hex
    with psycopg.connect(postgres, autocommit=True) as connection:
        for row in rows:
            connection.execute(stage_row, (attempt, *row))
    yield attempt


def write(batch: DataFrame, batch_id: int) -> None:
    winners = batch.rdd.mapPartitions(stage).collect()
    with psycopg.connect(postgres) as connection:
        # The record first: it conflicts if the batch is already published, or a zombie is publishing it at this moment.
        note = "INSERT INTO published (batch) VALUES (%s) ON CONFLICT DO NOTHING RETURNING batch"
        if connection.execute(note, (batch_id,)).fetchone() is not None:
            connection.execute(publish, (winners,))
        connection.execute("DELETE FROM staged WHERE attempt = ANY(%s)", (winners,))


flights = departures(spark, args.kafka, args.topic).select(*COLUMNS)
run(flights, write, args.checkpoint)
