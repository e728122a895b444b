"""Flights to Postgres, each with its number among the flights of its plane: one more than the table holds at that time.

By default all rows in the table count. A batch that is replayed finds its own rows there and numbers its flights again, too
high: by its key each row is written once, but with another number. With ``--by-position`` only rows from earlier positions of
the source count: the number is the same however often the batch runs.
"""

from __future__ import annotations

import psycopg
from common import COLUMNS, flights_with_planes, job_parser, names, run, spark_session
from psycopg import sql
from pyspark.sql import DataFrame

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None)
parser.add_argument("--table", default="departures", help="table with a unique key on the source position")
parser.add_argument("--by-position", action="store_true", help="count only what came before in the source")
args = parser.parse_args()

WRITE = """
    INSERT INTO {table} ({columns}, nth)
    SELECT {values}, 1 + count(*) FROM {table} WHERE tailnum = %(tailnum)s {earlier}
    ON CONFLICT (src_partition, src_offset) DO UPDATE SET nth = EXCLUDED.nth
"""

spark = spark_session("nth-flight")
earlier = "AND src_partition = %(src_partition)s AND src_offset < %(src_offset)s" if args.by_position else ""
write_row = sql.SQL(WRITE).format(
    table=sql.Identifier(args.table),
    columns=names(COLUMNS),
    values=sql.SQL(", ").join(map(sql.Placeholder, COLUMNS)),
    earlier=sql.SQL(earlier),
)


def write(batch: DataFrame, _batch_id: int) -> None:
    rows = batch.collect()
    with psycopg.connect(args.postgres) as connection:
        for row in rows:
            connection.execute(write_row, row.asDict())


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
