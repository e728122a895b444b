"""Flights with the weather of their hour as in `flights_with_weather`, and a sink that does not record its progress."""

from __future__ import annotations

from common import STATEFUL, departures, job_parser, plain_append, read_topic, run, spark_session
from flights_with_weather import weather, with_weather

parser = job_parser(__doc__, topic="flights", postgres=None, table="flights_weather")
parser.add_argument("--weather", default="weather", help="input topic of the weather")


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("naive-flights-with-weather", STATEFUL)
    sink = plain_append(args.postgres, args.table)
    flights = departures(spark, args.kafka, args.topic)
    rows = with_weather(flights, weather(read_topic(spark, args.kafka, args.weather)))
    run(rows, sink, args.checkpoint)


if __name__ == "__main__":
    main()
