"""Trips to Postgres: a row is inserted unless the table has an equal one, so that a replay changes nothing.

Two equal trips are one row, too. ``--by-position`` is the remedy.
"""

from __future__ import annotations

import psycopg
from common import departures, job_parser, run, spark_session
from pyspark.sql import DataFrame

parser = job_parser(__doc__, topic="flights", postgres=None)
parser.add_argument("--by-position", action="store_true", help="look for the row's source position instead")
args = parser.parse_args()

COLUMNS = ["carrier", "origin", "dest", "src_partition", "src_offset"]
INSERT = """
    INSERT INTO trips (carrier, origin, dest, src_partition, src_offset)
    SELECT %(carrier)s, %(origin)s, %(dest)s, %(src_partition)s, %(src_offset)s
    WHERE NOT EXISTS (SELECT FROM trips WHERE
"""
EQUAL = "(carrier, origin, dest) = (%(carrier)s, %(origin)s, %(dest)s))"
POSITION = "(src_partition, src_offset) = (%(src_partition)s, %(src_offset)s))"

spark = spark_session("where-not-exists")
insert = INSERT + (POSITION if args.by_position else EQUAL)


def write(batch: DataFrame, _batch_id: int) -> None:
    rows = [row.asDict() for row in batch.collect()]
    with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
        cursor.executemany(insert, rows)


run(departures(spark, args.kafka, args.topic).select(*COLUMNS), write, args.checkpoint)
