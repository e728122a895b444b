"""Errors of all devices in each minute, kept up to date in a Postgres table, although the clocks of some devices are wrong.

A message carries two times of the device's clock, measured and sent, and the server adds the time at which it was received. A message
travels only briefly, so the device's clock is wrong by the difference between sent and received, and the time of the measurement can be
corrected. With ``--trust-devices`` the job takes the time of the measurement as it is.
"""

from __future__ import annotations

from common import STATEFUL, job_parser, read_topic, run, spark_session
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from onceproof.sinks.postgres import PostgresUpsert

READING = "device STRING, errors INT, measured_at TIMESTAMP, sent_at TIMESTAMP, received_at TIMESTAMP"

parser = job_parser(__doc__, topic="telemetry", postgres=None)
parser.add_argument("--table", default="errors_per_minute", help="table with a unique key on minute")
parser.add_argument("--trust-devices", action="store_true", help="take the time of the device's clock as it is")


def totals(readings: DataFrame) -> DataFrame:
    """The readings of each minute and their errors. Column ``at``: when each reading was taken."""
    return (
        readings.withWatermark("at", "1 hour")
        .groupBy(f.window("at", "1 minute").alias("window"))
        .agg(f.count("*").alias("readings"), f.sum("errors").alias("errors"))
        .select(f.col("window.start").alias("minute"), "readings", "errors")
    )


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("device-clocks", STATEFUL)
    sink = PostgresUpsert(
        args.postgres, args.table, key=["minute"], pipeline="device-clocks", checkpoint=args.checkpoint
    )
    value = f.from_json(f.col("value").cast("string"), READING)
    readings = read_topic(spark, args.kafka, args.topic).select(value.alias("reading")).select("reading.*")
    at = "measured_at" if args.trust_devices else "measured_at + (received_at - sent_at)"
    run(totals(readings.withColumn("at", f.expr(at))), sink, args.checkpoint, mode="update")


if __name__ == "__main__":
    main()
