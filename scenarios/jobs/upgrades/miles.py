"""The miles of each plane, in a state of the job's own (``transformWithState``) whose schema Avro describes.

The first version called the column of its state otherwise (``--column miles``). Avro resolves the old schema to the new one by the names of
the columns: one that the state does not have is null. With ``--formerly`` the job also has the old column, and takes its value over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from common import STATEFUL, departures, job_parser, plain_upsert, run, spark_session
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

AVRO = {"spark.sql.streaming.stateStore.encodingFormat": "avro"}

parser = job_parser(__doc__, topic="flights", postgres=None)
parser.add_argument("--column", default="distance", help="name of the column of the state")
parser.add_argument("--formerly", help="name that the column had in an earlier version")


class Miles(StatefulProcessor):
    """Adds up the distances of a plane's flights. ``columns``: of its state, an older name first; the last one is written."""

    def __init__(self, columns: list[str]) -> None:
        self._columns = columns

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", ", ".join(f"{name} LONG" for name in self._columns))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        known = [value for value in self._total.get() or () if value is not None]
        total = sum((row.distance for row in rows), known[-1] if known else 0)
        self._total.update((*[None] * (len(self._columns) - 1), total))
        yield Row(tailnum=key[0], miles=total)

    def close(self) -> None:
        return


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("miles", STATEFUL | AVRO)
    columns = [args.column] if args.formerly is None else [args.formerly, args.column]
    flights = departures(spark, args.kafka, args.topic).where("tailnum IS NOT NULL").select("tailnum", "distance")
    totals = flights.groupBy("tailnum").transformWithState(
        Miles(columns), "tailnum STRING, miles LONG", "Update", "None"
    )
    run(totals, plain_upsert(args.postgres, "plane_miles", ["tailnum"]), args.checkpoint, mode="update")


if __name__ == "__main__":
    main()
