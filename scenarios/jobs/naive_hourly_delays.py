"""Delays of each hour as they are often kept: no state, each batch adds its counts to those in the table.

An increment is not idempotent: a batch that is written twice counts twice.
"""

from __future__ import annotations

import psycopg
from common import departures, job_parser, run, spark_session
from hourly_delays import totals
from psycopg import sql
from pyspark.sql import DataFrame

parser = job_parser(__doc__, topic="flights", postgres=None)
parser.add_argument("--table", default="hourly_delays", help="table with a unique key on carrier, origin and hour")
args = parser.parse_args()

spark = spark_session("naive-hourly-delays")
add = sql.SQL(
    "INSERT INTO {} AS t (carrier, origin, hour, flights, delay_sum, delay_max) VALUES (%s, %s, %s, %s, %s, %s)"
    " ON CONFLICT (carrier, origin, hour) DO UPDATE SET flights = t.flights + EXCLUDED.flights,"
    " delay_sum = t.delay_sum + EXCLUDED.delay_sum, delay_max = greatest(t.delay_max, EXCLUDED.delay_max)"
).format(sql.Identifier(args.table))


def increment(batch: DataFrame, _batch_id: int) -> None:
    rows = totals(batch).collect()
    with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
        cursor.executemany(add, rows)


flights = departures(spark, args.kafka, args.topic)
run(flights, increment, args.checkpoint)
