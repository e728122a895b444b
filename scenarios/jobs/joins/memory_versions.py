"""Flights with their plane as it was at departure, looked up in the driver's memory, where a stream of changes keeps the planes.

The sink writes each batch exactly once. But a new driver begins with the planes as they were before any change: the batches
that changed them are never read again.
"""

from __future__ import annotations

from datetime import UTC, datetime

from common import departures, job_parser, read_topic, run, spark_session
from flights_with_versions import changes
from pyspark.sql import DataFrame

from onceproof.sinks.postgres import PostgresAppend

FLIGHT = ["carrier", "flight", "origin", "sched_dep", "tailnum"]

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="flights_planes")
parser.add_argument("--changes", default="plane_changes", help="input topic of the planes' changes")
args = parser.parse_args()

spark = spark_session("memory-versions")
#: Tail number -> its versions: valid from, number, seats.
versions: dict[str, list[tuple[datetime, int, int]]] = {
    plane["tailnum"]: [(datetime.min.replace(tzinfo=UTC), 0, plane["seats"])]
    for plane in spark.read.parquet(args.planes).select("tailnum", "seats").collect()
}
sink = PostgresAppend(args.postgres, args.table, pipeline="memory-versions", checkpoint=args.checkpoint)


def look_up(batch: DataFrame, batch_id: int) -> None:
    rows = batch.toArrow().to_pylist()
    for row in rows:
        if row["after"] is not None:
            after = row["after"]
            versions[row["tailnum"]].append((after["valid_from"], after["version"], after["seats"]))
    found = []
    for row in rows:
        if row["after"] is None and row["tailnum"] in versions:
            _, version, seats = max(v for v in versions[row["tailnum"]] if v[0] <= row["sched_dep"])
            found.append((*(row[name] for name in FLIGHT), version, seats))
    sink(spark.createDataFrame(found, COLUMNS), batch_id)


COLUMNS = "carrier STRING, flight INT, origin STRING, sched_dep TIMESTAMP, tailnum STRING, version INT, seats INT"
flights = departures(spark, args.kafka, args.topic).select(*FLIGHT)
changed = changes(read_topic(spark, args.kafka, args.changes)).select("tailnum", "after")
run(flights.unionByName(changed, allowMissingColumns=True), look_up, args.checkpoint)
