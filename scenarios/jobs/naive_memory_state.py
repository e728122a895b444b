"""Delays of each hour with the totals in the driver's memory, and a sink that writes each batch exactly once.

The totals die with the driver: an effectively-once sink does not make the state effectively-once.
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
from common import departures, job_parser, run, spark_session
from hourly_delays import KEY, totals
from pyspark.sql import DataFrame

from onceproof.sinks.postgres import PostgresUpsert

parser = job_parser(__doc__, topic="flights", postgres=None)
parser.add_argument("--table", default="hourly_delays", help="table with a unique key on carrier, origin and hour")
args = parser.parse_args()

spark = spark_session("naive-memory-state")
sink = PostgresUpsert(args.postgres, args.table, key=KEY, pipeline="memory-state", checkpoint=args.checkpoint)
known: dict[tuple[str, str, datetime], tuple[int, int, int]] = {}


def update(batch: DataFrame, batch_id: int) -> None:
    part = totals(batch).toArrow()
    rows = []
    for carrier, origin, hour, *more in zip(*(column.to_pylist() for column in part.columns), strict=True):
        flights, delay_sum, delay_max = known.get((carrier, origin, hour), (0, 0, more[2]))
        known[carrier, origin, hour] = (flights + more[0], delay_sum + more[1], max(delay_max, more[2]))
        rows.append((carrier, origin, hour, *known[carrier, origin, hour]))
    columns = zip(*rows, strict=True) if rows else [()] * part.num_columns
    sink.write(
        pa.table([pa.array(c, f.type) for c, f in zip(columns, part.schema, strict=True)], part.schema), batch_id
    )


flights = departures(spark, args.kafka, args.topic)
run(flights, update, args.checkpoint)
