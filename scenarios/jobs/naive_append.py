"""Flights to Postgres as they are often written: each batch is inserted and committed, and the job does not record that.

If the driver dies between the COMMIT and Spark's own commit log, the batch is written a second time.
"""

from __future__ import annotations

from common import flights_with_planes, job_parser, plain_append, run, spark_session

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="departures")
parser.add_argument("--available-now", action="store_true", help="process what is there and end, as under a scheduler")
args = parser.parse_args()

spark = spark_session("naive-append")
append = plain_append(args.postgres, args.table)
flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
run(flights, append, args.checkpoint, available_now=args.available_now)
