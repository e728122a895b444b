"""Flights with the weather of their hour, two streams joined on time, appended to Postgres: effectively once.

Flights without weather for their hour are written too, once the watermark shows that none can come any more.
"""

from __future__ import annotations

from common import STATEFUL, appending, departures, job_parser, read_topic, run, spark_session
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

READING = "origin STRING, time_hour TIMESTAMP, temp DOUBLE, wind_dir INT, visib DOUBLE"


parser = job_parser(__doc__, naive=True, topic="flights", postgres=None, table="flights_weather")
parser.add_argument("--weather", default="weather", help="input topic of the weather")
args = parser.parse_args()


def weather(records: DataFrame) -> DataFrame:
    """The readings, with names of their own where a flight has a column of that name."""
    reading = f.from_json(f.col("value").cast("string"), READING).alias("reading")
    return (
        records.select(reading)
        .select("reading.*")
        .withColumnsRenamed({"origin": "weather_origin", "time_hour": "weather_hour"})
    )


def with_weather(flights: DataFrame, readings: DataFrame) -> DataFrame:
    """Every flight once, with the reading of its origin and hour, or with nulls."""
    # Chunks of the feed are a day long, and a batch may take any part of one: nothing is three days late.
    flights = flights.withWatermark("sched_dep", "3 days")
    readings = readings.withWatermark("weather_hour", "3 days")
    same_hour = "weather_hour <= sched_dep AND sched_dep < weather_hour + INTERVAL 1 HOUR"
    return flights.join(readings, f.expr(f"origin = weather_origin AND {same_hour}"), "leftOuter").select(
        "carrier", "flight", "origin", "sched_dep", "dep_delay", "temp", "wind_dir", "visib"
    )


spark = spark_session("flights-with-weather", STATEFUL)
sink = appending(args, "flights-with-weather")
flights = departures(spark, args.kafka, args.topic)
rows = with_weather(flights, weather(read_topic(spark, args.kafka, args.weather)))
run(rows, sink, args.checkpoint)
