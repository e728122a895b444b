"""The most errors that each device has had in one minute, kept in a Postgres table.

A maximum needs no record of progress: writing it twice changes nothing. The minute is that of the readings. With ``--per-batch`` it is
that of the job, which is triggered once a minute: the readings of a batch are taken for those of one minute.
"""

from __future__ import annotations

import psycopg
from common import STATEFUL, job_parser, read_topic, run, spark_session
from psycopg import sql
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

READING = "device STRING, errors INT, measured_at TIMESTAMP"

parser = job_parser(__doc__, topic="telemetry", postgres=None)
parser.add_argument("--table", default="peaks", help="table with a unique key on device")
parser.add_argument("--per-batch", action="store_true", help="count the errors of a batch, not of a minute")


def per_minute(readings: DataFrame) -> DataFrame:
    """The errors of each device in each minute in which it measured them."""
    return (
        readings.withWatermark("measured_at", "10 minutes")
        .groupBy("device", f.window("measured_at", "1 minute"))
        .agg(f.sum("errors").alias("errors"))
    )


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("peaks", STATEFUL)
    keep = sql.SQL(
        "INSERT INTO {} AS t (device, peak) VALUES (%s, %s)"
        " ON CONFLICT (device) DO UPDATE SET peak = greatest(t.peak, EXCLUDED.peak)"
    ).format(sql.Identifier(args.table))

    def write(counts: DataFrame, _batch_id: int) -> None:
        with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
            cursor.executemany(keep, counts.groupBy("device").agg(f.max("errors")).collect())

    def write_batch(readings: DataFrame, batch_id: int) -> None:
        write(readings.groupBy("device").agg(f.sum("errors").alias("errors")), batch_id)

    value = f.from_json(f.col("value").cast("string"), READING)
    readings = read_topic(spark, args.kafka, args.topic).select(value.alias("reading")).select("reading.*")
    if args.per_batch:
        run(readings, write_batch, args.checkpoint)
    else:
        run(per_minute(readings), write, args.checkpoint, mode="update")


if __name__ == "__main__":
    main()
