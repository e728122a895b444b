"""The delays of each carrier, kept up to date in a Postgres table: how many flights, and the sum of their delays.

The first version of this job added up the delays at departure (``--of dep_delay``). The sum is in a column of the same name and type, so
that Spark continues with the first version's sums when the job is changed.
"""

from __future__ import annotations

from common import STATEFUL, departures, job_parser, plain_upsert, run, spark_session
from pyspark.sql import functions as f

parser = job_parser(__doc__, topic="flights", postgres=None)
parser.add_argument("--of", choices=["arr_delay", "dep_delay"], default="arr_delay", help="which delay to add up")
args = parser.parse_args()

spark = spark_session("delays", STATEFUL)
flights = departures(spark, args.kafka, args.topic)
totals = flights.groupBy("carrier").agg(f.count("*").alias("flights"), f.sum(args.of).alias("delay"))
run(totals, plain_upsert(args.postgres, "carrier_delays", ["carrier"]), args.checkpoint, mode="update")
