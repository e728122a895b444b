"""Flights to Postgres, with a COMMIT after every hundred rows, to keep transactions short. The last one records the batch as done."""

from __future__ import annotations

import psycopg
from common import COLUMNS, flights_with_planes, insert_into, job_parser, run, spark_session
from pyspark.sql import DataFrame

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="departures")
parser.add_argument("--rows", type=int, default=100, help="rows per transaction; 0: the whole batch")
args = parser.parse_args()

spark = spark_session("commit-every-hundred")
insert = insert_into(args.table, COLUMNS)


def write(batch: DataFrame, batch_id: int) -> None:
    rows = batch.collect()
    with psycopg.connect(args.postgres) as connection:
        if connection.execute("SELECT FROM batches_done WHERE batch = %s", (batch_id,)).fetchone() is not None:
            return
        for number, row in enumerate(rows, 1):
            connection.execute(insert, row)
            if args.rows and number % args.rows == 0:
                connection.commit()
        connection.execute("INSERT INTO batches_done (batch) VALUES (%s)", (batch_id,))


flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, write, args.checkpoint)
