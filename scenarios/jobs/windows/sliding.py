"""The flights and miles of each plane in the 24 hours up to each of its flights: a window that slides from flight to flight.

A flight's window reaches back into earlier batches. The rows that the sink has committed hold what is needed of them, so this state
is as durable as the output. With ``--in-memory`` the driver remembers the flights itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pyarrow as pa
from common import departures, job_parser, run, spark_session
from psycopg import sql
from pyspark.sql import DataFrame

from onceproof.sinks.postgres import PostgresAppend

WINDOW = timedelta(hours=24)
Flown = list[tuple[datetime, int]]
"""When each flight of a plane departed, and its miles."""

parser = job_parser(__doc__, topic="flights", postgres=None, table="plane_miles")
parser.add_argument("--in-memory", action="store_true", help="remember the flights in the memory of the driver")


def slide(flights: list[dict[str, Any]], flown: Mapping[str, Flown]) -> None:
    """Add the totals of its window to each flight, and the flight to those that its plane has flown."""
    for flight in flights:
        mine = flown[flight["tailnum"]]
        mine.append((flight["sched_dep"], flight["distance"]))
        inside = [miles for at, miles in mine if at > flight["sched_dep"] - WINDOW]
        flight["flights_24h"], flight["miles_24h"] = len(inside), sum(inside)


def written(postgres: str, table: str, flights: list[dict[str, Any]]) -> Mapping[str, Flown]:
    """What the planes of these flights have flown before, as far as a window can reach back: from the rows in the table."""
    flown: dict[str, Flown] = defaultdict(list)
    if flights:
        query = sql.SQL("SELECT tailnum, sched_dep, distance FROM {} WHERE tailnum = ANY(%s) AND sched_dep > %s")
        reach = [[one["tailnum"] for one in flights], min(one["sched_dep"] for one in flights) - WINDOW]
        with psycopg.connect(postgres) as connection:
            for tailnum, at, miles in connection.execute(query.format(sql.Identifier(table)), reach):
                flown[tailnum].append((at, miles))
    return flown


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("sliding-windows")
    sink = PostgresAppend(args.postgres, args.table, pipeline="sliding-windows", checkpoint=args.checkpoint)
    in_memory: dict[str, Flown] = defaultdict(list)

    def write(batch: DataFrame, batch_id: int) -> None:
        flights = batch.orderBy("src_partition", "src_offset").toArrow()
        rows = flights.to_pylist()
        slide(rows, in_memory if args.in_memory else written(args.postgres, args.table, rows))
        totals = pa.schema([("flights_24h", pa.int64()), ("miles_24h", pa.int64())])
        sink.write(pa.Table.from_pylist(rows, pa.schema([*flights.schema, *totals])), batch_id)

    known = departures(spark, args.kafka, args.topic).where("tailnum IS NOT NULL")
    columns = ["src_partition", "src_offset", "tailnum", "carrier", "flight", "origin", "sched_dep", "distance"]
    run(known.select(*columns), write, args.checkpoint)


if __name__ == "__main__":
    main()
