"""The last departure of each plane, upserted into Postgres: "an upsert is idempotent".

It replaces what is there, also by something older. ``--newer-only`` is the remedy.
"""

from __future__ import annotations

import psycopg
from common import departures, job_parser, run, spark_session
from pyspark.sql import DataFrame

parser = job_parser(__doc__, topic="flights", postgres=None)
parser.add_argument("--newer-only", action="store_true", help="a row replaces only an older one")
args = parser.parse_args()

COLUMNS = ["tailnum", "dest", "sched_dep", "src_offset"]
UPSERT = """
    INSERT INTO last_seen (tailnum, dest, sched_dep, src_offset) VALUES (%s, %s, %s, %s)
    ON CONFLICT (tailnum) DO UPDATE
    SET dest = EXCLUDED.dest, sched_dep = EXCLUDED.sched_dep, src_offset = EXCLUDED.src_offset
"""

spark = spark_session("last-seen")
upsert = UPSERT + ("WHERE EXCLUDED.src_offset > last_seen.src_offset" if args.newer_only else "")


def write(batch: DataFrame, _batch_id: int) -> None:
    rows = batch.collect()
    with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
        cursor.executemany(upsert, rows)


flights = departures(spark, args.kafka, args.topic).where("tailnum IS NOT NULL").select(*COLUMNS)
run(flights, write, args.checkpoint)
