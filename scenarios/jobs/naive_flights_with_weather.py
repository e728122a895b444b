"""Flights with the weather of their hour as in `flights_with_weather`, and a sink that does not record its progress."""

from __future__ import annotations

import argparse

from common import STATEFUL, departures, plain_append, read_topic, spark_session
from flights_with_weather import weather, with_weather

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", default="flights", help="input topic")
parser.add_argument("--weather", default="weather", help="input topic of the weather")
parser.add_argument("--postgres", required=True, help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", default="flights_weather", help="table to append to")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("naive-flights-with-weather", STATEFUL)
    sink = plain_append(args.postgres, args.table)
    flights = departures(spark, args.kafka, args.topic)
    rows = with_weather(flights, weather(read_topic(spark, args.kafka, args.weather)))

    query = (
        rows.writeStream.foreachBatch(sink).outputMode("append").option("checkpointLocation", args.checkpoint).start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
