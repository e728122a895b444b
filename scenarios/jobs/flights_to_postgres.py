"""Flights that departed, enriched with their planes, appended to a Postgres table: effectively once."""

from __future__ import annotations

from common import flights_with_planes, job_parser, run, spark_session

from onceproof.sinks.postgres import PostgresAppend
from onceproof.sinks.postgres_staged import PostgresStaged

parser = job_parser(__doc__, topic="flights", planes=None, postgres=None, table="departures")
parser.add_argument("--staged", action="store_true", help="write from the tasks, not from the driver")
parser.add_argument("--commit-timeout", type=float, default=30.0, help="seconds to wait for the answer to a COMMIT")
parser.add_argument("--dead-letters", help="table for rows that Postgres refuses (default: they fail their batch)")
parser.add_argument("--available-now", action="store_true", help="process what is there and end, as under a scheduler")
parser.add_argument(
    "--skip-lost-input",
    action="store_true",
    help="go on after records that the log no longer has (failOnDataLoss=false)",
)
args = parser.parse_args()

spark = spark_session("flights-to-postgres")
sink = (PostgresStaged if args.staged else PostgresAppend)(
    args.postgres,
    args.table,
    pipeline="flights-to-postgres",
    checkpoint=args.checkpoint,
    commit_timeout_s=args.commit_timeout,
    dead_letters=args.dead_letters,
)
options = {"failOnDataLoss": "false"} if args.skip_lost_input else {}
flights = flights_with_planes(spark, args.kafka, args.topic, args.planes, **options)
run(flights, sink, args.checkpoint, available_now=args.available_now)
