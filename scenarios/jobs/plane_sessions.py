"""The working days of each plane: sessions of flights at most six hours apart, each appended to Postgres once, when it is over.

A session is over when the watermark has passed its end: only then its row is written, and only once.
"""

from __future__ import annotations

from common import STATEFUL, appending, departures, job_parser, run, spark_session
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

parser = job_parser(__doc__, naive=True, topic="flights", postgres=None, table="plane_sessions")
parser.add_argument(
    "--no-data-batches", action="store_true", help="run a batch without input when the watermark has moved"
)
args = parser.parse_args()


def sessions(flights: DataFrame) -> DataFrame:
    """A session of a plane: its flights' number and distance (miles), from the first departure to 6 h after the last."""
    return (
        # Chunks of the feed are a day long, and a batch may take any part of one: nothing is two days late.
        flights.withWatermark("sched_dep", "2 days")
        .groupBy("tailnum", f.session_window("sched_dep", "6 hours").alias("session"))
        .agg(f.count("*").alias("flights"), f.sum("distance").alias("distance"))
        .select(
            "tailnum",
            f.col("session.start").alias("session_start"),
            f.col("session.end").alias("session_end"),
            "flights",
            "distance",
        )
    )


no_data = {"spark.sql.streaming.noDataMicroBatches.enabled": str(args.no_data_batches).lower()}
spark = spark_session("plane-sessions", STATEFUL | no_data)
sink = appending(args, "plane-sessions")
rows = sessions(departures(spark, args.kafka, args.topic))
run(rows, sink, args.checkpoint)
