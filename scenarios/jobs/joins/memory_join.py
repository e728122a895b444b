"""Flights with the weather of their hour, joined in the driver's memory: each flight waits there for its weather.

Each flight has a key and is written once, however often its batch runs. But the flights that wait die with the driver, and
the batches that brought them are never read again.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import psycopg
from common import FLIGHT, insert_into, job_parser, read_topic, run, spark_session
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

#: A reading of the weather has the ``origin`` and the ``time_hour`` of the flights that it is for, and no carrier.
EITHER = f"{FLIGHT}, temp DOUBLE, wind_dir INT, visib DOUBLE"
COLUMNS = ["carrier", "flight", "origin", "sched_dep", "dep_delay"]
WEATHER = ["temp", "wind_dir", "visib"]
#: When the weather has come so far, none comes any more for an earlier hour.
LATEST = timedelta(days=3)

parser = job_parser(__doc__, topic="flights", postgres=None)
parser.add_argument("--weather", default="weather", help="input topic of the weather")
parser.add_argument("--table", default="flights_weather", help="table with a unique key of each flight")
args = parser.parse_args()

spark = spark_session("memory-join")
insert = insert_into(args.table, [*COLUMNS, *WEATHER], "ON CONFLICT DO NOTHING")
waiting: list[dict[str, Any]] = []
readings: dict[tuple[str, datetime], dict[str, Any]] = {}


def join(batch: DataFrame, _batch_id: int) -> None:
    for row in batch.toArrow().to_pylist():
        if row["carrier"] is None:
            readings[row["origin"], row["time_hour"]] = row
        else:
            waiting.append(row)
    newest = max((hour for _origin, hour in readings), default=None)
    rows, left = [], []
    for flight in waiting:
        reading = readings.get((flight["origin"], flight["time_hour"]))
        if reading is not None or (newest is not None and newest - flight["time_hour"] >= LATEST):
            rows.append([flight[name] for name in COLUMNS] + [(reading or {}).get(name) for name in WEATHER])
        else:
            left.append(flight)
    with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
        cursor.executemany(insert, rows)
    waiting[:] = left


either = f.from_json(f.col("value").cast("string"), EITHER).alias("either")
records = read_topic(spark, args.kafka, f"{args.topic},{args.weather}").select(either).select("either.*")
run(records.where("carrier IS NULL OR dep_time IS NOT NULL"), join, args.checkpoint)
