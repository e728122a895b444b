"""Delays of each hour without Spark's watermark: flights later than half a day are left out, by the newest one seen so far.

The sink adds each batch exactly once. What is late depends on what this driver has seen: a new driver has seen nothing,
and counts flights that the previous one left out.
"""

from __future__ import annotations

from datetime import datetime

from common import departures, job_parser, run, spark_session
from hourly_delays import KEY, totals
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from onceproof.sinks.postgres import Merge, PostgresUpsert

parser = job_parser(__doc__, topic="flights", postgres=None)
parser.add_argument("--table", default="hourly_delays", help="table with a unique key on carrier, origin and hour")
parser.add_argument("--watermark", default="12 hours", help="how late a flight may come")


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("naive-stragglers")
    merge: dict[str, Merge] = {"flights": "sum", "delay_sum": "sum", "delay_max": "max"}
    sink = PostgresUpsert(
        args.postgres, args.table, key=KEY, merge=merge, pipeline="naive-stragglers", checkpoint=args.checkpoint
    )
    closes = f.date_trunc("hour", "sched_dep") + f.expr("INTERVAL 1 HOUR")
    delay = f.expr(f"INTERVAL {args.watermark}")
    newest: datetime | None = None

    def add(batch: DataFrame, batch_id: int) -> None:
        nonlocal newest
        batch.persist()
        sink(totals(batch if newest is None else batch.where(closes > f.lit(newest) - delay)), batch_id)
        seen = [newest, *(row.at for row in batch.agg(f.max("sched_dep").alias("at")).collect())]
        newest = max((at for at in seen if at is not None), default=None)
        batch.unpersist()

    flights = departures(spark, args.kafka, args.topic)
    run(flights, add, args.checkpoint)


if __name__ == "__main__":
    main()
