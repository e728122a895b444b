"""The working days of each plane without state in Spark: a table keeps each plane's open session until it is over.

Each batch is one transaction, so the open sessions and those that are over always fit together. But nothing records which batches they
include: a batch that is replayed extends the open sessions once more.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
from common import copy_rows, departures, job_parser, names, run, spark_session
from psycopg import sql
from pyspark.sql import DataFrame, Row

GAP = timedelta(hours=6)
#: As in plane_sessions.py: no flight comes later than this, so a session that ended before is over.
LATE = timedelta(days=2)
COLUMNS = ["tailnum", "session_start", "session_end", "flights", "distance"]

parser = job_parser(__doc__, topic="flights", postgres=None, table="plane_sessions")
parser.add_argument("--open", default="open_sessions", help="table of the open sessions")


def extend(sessions: dict[str | None, list[Any]], flights: list[dict[str, Any]]) -> list[Row]:
    """Extend the open sessions by the flights, in order of time. Removes those that are over, and returns them."""
    over: list[list[Any]] = []
    for flight in flights:
        plane, at = flight["tailnum"], flight["sched_dep"]
        if plane in sessions and at > sessions[plane][2]:
            over.append(sessions.pop(plane))
        session = sessions.setdefault(plane, [plane, at, at, 0, 0])
        session[2] = max(session[2], at + GAP)
        session[3] += 1
        session[4] += flight["distance"]
    if flights:
        newest = flights[-1]["sched_dep"]
        over += [sessions.pop(plane) for plane in list(sessions) if sessions[plane][2] < newest - LATE]
    return [Row(*session) for session in over]


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("open-sessions")
    table = sql.Identifier(args.open)

    def update(batch: DataFrame, _batch_id: int) -> None:
        flights = batch.select("tailnum", "sched_dep", "distance").orderBy("sched_dep").toArrow().to_pylist()
        with psycopg.connect(args.postgres) as connection:
            kept = connection.execute(sql.SQL("DELETE FROM {} RETURNING {}").format(table, names(COLUMNS)))
            sessions = {plane: [plane, *session] for plane, *session in kept}
            copy_rows(connection, args.table, COLUMNS, extend(sessions, flights))
            copy_rows(connection, args.open, COLUMNS, (Row(*session) for session in sessions.values()))

    # The job needs no watermark. Spark logs it all the same, which shows that every session of a real flight is over at the end.
    flights = departures(spark, args.kafka, args.topic).withWatermark("sched_dep", "2 days")
    run(flights, update, args.checkpoint)


if __name__ == "__main__":
    main()
