"""A reminder one hour after the scheduled departure of each plane's flights: a timer in the state, which the watermark sets off.

The timer emits a row, and the sink writes the batch's rows exactly once. With ``--act-in-timer`` the timer writes the row itself. What a
timer does happens again in a replay of its batch: the state in which it has fired is valid only once the batch is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
from common import STATEFUL, departures, job_parser, run, spark_session
from pyspark.sql import Row
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from onceproof.sinks.postgres import PostgresAppend

HOUR_MS = 3_600_000
INSERT = "INSERT INTO reminders (tailnum, due) VALUES (%s, to_timestamp(%s / 1000.0))"

parser = job_parser(__doc__, topic="flights", postgres=None)
parser.add_argument("--act-in-timer", action="store_true", help="let each timer write its row itself")


class Reminders(StatefulProcessor):
    """One timer per plane and time. ``postgres``: where timers write their rows; None: they emit them."""

    def __init__(self, postgres: str | None) -> None:
        self._postgres = postgres
        self._connection: psycopg.Connection[Any] | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            self._handle.registerTimer(row.departs_ms + HOUR_MS)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        due_ms = expiredTimerInfo.getExpiryTimeInMs()
        if self._postgres is None:
            yield Row(tailnum=key[0], due_ms=due_ms)
            return
        if self._connection is None:
            self._connection = psycopg.connect(self._postgres, autocommit=True)
        self._connection.execute(INSERT, (key[0], due_ms))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("reminders", STATEFUL)
    flights = departures(spark, args.kafka, args.topic).where("tailnum IS NOT NULL").withWatermark("sched_dep", "1 day")
    due = (
        flights.select("tailnum", "sched_dep", f.unix_millis("sched_dep").alias("departs_ms"))
        .groupBy("tailnum")
        .transformWithState(
            Reminders(args.postgres if args.act_in_timer else None),
            "tailnum STRING, due_ms LONG",
            "Append",
            "EventTime",
        )
        .select("tailnum", f.timestamp_millis("due_ms").alias("due"))
    )
    sink = PostgresAppend(args.postgres, "reminders", pipeline="reminders", checkpoint=args.checkpoint)
    run(due, sink, args.checkpoint)


if __name__ == "__main__":
    main()
