"""Response times per minute and service, the rules for alerts, and how an alert is sent: what the jobs of this folder share.

A minute is written once the watermark has passed its end, and never changes then, so whether it is worth an alert does not depend
on the batches. The percentiles are exact: Spark's state keeps the response times of the minutes that are not over.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from http.client import HTTPConnection
from urllib.parse import urlsplit

from common import STATEFUL, insert_into, job_parser, read_topic, spark_session
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f

MEASUREMENT = "measured_at TIMESTAMP, service STRING, agent STRING, response_ms INT, status INT"
COLUMNS = ("service", "minute", "requests", "errors", "min_ms", "max_ms", "avg_ms", "p50_ms", "p95_ms", "p99_ms")
INSERT = insert_into("service_minutes", COLUMNS, "ON CONFLICT (service, minute) DO NOTHING")
"""Inserts a row of `minutes`. A replayed batch has the same rows, so those that are there already are right."""
SLOW_P95_MS = 400
"""A minute is slow if 5 % of its requests took longer."""
FAILING_ONE_IN = 10
"""A minute is failing if more than one in so many of its requests failed."""

_TIMEOUT_S = 10.0


def parsed(description: str | None) -> argparse.Namespace:
    """The options of a job: Kafka, the topic, the checkpoint, Postgres, and the webhook's URL."""
    parser = job_parser(description, topic="metrics", postgres=None)
    parser.add_argument("--webhook", required=True, help="URL to which alerts are sent")
    args: argparse.Namespace = parser.parse_args()
    return args


def minutes(name: str, args: argparse.Namespace) -> DataFrame:
    """One row per minute and service, as soon as the minute is over. Columns: `COLUMNS`; ``minute`` as text, in UTC."""
    spark = spark_session(name, STATEFUL)
    measurement = f.from_json(f.col("value").cast("string"), MEASUREMENT).alias("measurement")
    measurements = read_topic(spark, args.kafka, args.topic).select(measurement).select("measurement.*")
    rows: DataFrame = (
        measurements.withWatermark("measured_at", "30 seconds")
        .groupBy("service", f.window("measured_at", "1 minute").alias("window"))
        .agg(
            f.count("*").alias("requests"),
            f.count_if(f.col("status") >= 500).alias("errors"),
            f.min("response_ms").alias("min_ms"),
            f.max("response_ms").alias("max_ms"),
            f.avg("response_ms").alias("avg_ms"),
            *map(_percentile, (50, 95, 99)),
        )
        # As text: a datetime of Python would be in the machine's own time zone.
        .withColumn("minute", f.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'"))
        .select(*COLUMNS)
    )
    return rows


def _percentile(percent: int) -> Column:
    """The least response time that so many percent of the requests did not exceed, in ms."""
    exact = f.expr(f"percentile_disc(0.{percent}) WITHIN GROUP (ORDER BY response_ms)")
    return exact.cast("int").alias(f"p{percent}_ms")


def alerts(rows: Iterable[Row]) -> Iterator[tuple[str, str]]:
    """Key and body (JSON) of each alert: a service was slow for a minute, or too many of its requests failed."""
    for row in rows:
        if row.p95_ms > SLOW_P95_MS:
            yield _alert(row, "slow", row.p95_ms)
        if row.errors * FAILING_ONE_IN > row.requests:
            yield _alert(row, "failing", row.errors)


def _alert(row: Row, rule: str, value: int) -> tuple[str, str]:
    body = {"service": row.service, "minute": row.minute, "rule": rule, "value": value}
    return f"{row.service} {row.minute} {rule}", json.dumps(body)


def send(url: str, body: str, key: str | None = None) -> None:
    """POST an alert, with ``key`` as its Idempotency-Key. Raises `OSError`, also if the receiver does not accept it."""
    address = urlsplit(url)
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Idempotency-Key": key})
    connection = HTTPConnection(address.netloc, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", address.path, body, headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise OSError(f"{url} answered {answer.status}: {answer.read(500)!r}")
    finally:
        connection.close()
