"""Flights with their delays, upserted into Postgres by their position in the source.

The first version of this job did not know the delay at arrival (``--without arr_delay``).
"""

from __future__ import annotations

from common import departures, job_parser, plain_upsert, run, spark_session

COLUMNS = ["src_partition", "src_offset", "carrier", "flight", "sched_dep", "dep_delay", "arr_delay"]

parser = job_parser(__doc__, topic="flights", postgres=None)
parser.add_argument("--without", choices=COLUMNS[2:], help="a column that is not written")
args = parser.parse_args()

spark = spark_session("punctuality")
flights = departures(spark, args.kafka, args.topic).select(*(name for name in COLUMNS if name != args.without))
run(flights, plain_upsert(args.postgres, "punctuality", COLUMNS[:2]), args.checkpoint)
