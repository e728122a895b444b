"""Flights to Postgres through Spark Connect. Starts a Connect server as its own child, and is then a client of it.

The server is the driver: it plans the batches, writes the checkpoint, and runs ``foreachBatch`` in a Python worker of its own.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from onceproof.sinks.postgres import PostgresAppend

JOBS = Path(__file__).parents[3] / "scenarios" / "jobs"
sys.path.insert(0, str(JOBS))

from common import flights_with_planes, plain_append  # noqa: E402  # in the folder of the shipped jobs

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", required=True, help="input topic")
parser.add_argument("--planes", required=True, help="Parquet file of the planes")
parser.add_argument("--postgres", required=True, help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", required=True, help="table to append to")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")
parser.add_argument("--naive", action="store_true", help="append without recording the progress")

SERVER = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
}


def start_server() -> int:
    """Start a Connect server on a free port of loopback; return the port once it listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    settings = {**SERVER, "spark.connect.grpc.binding.port": str(port)}
    server = subprocess.Popen(
        [
            Path(pyspark.__file__).parent / "bin" / "spark-submit",
            *("--master", "local[2]"),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
            "spark-internal",
        ],
        env={**os.environ, "PYTHONPATH": str(JOBS)},  # the server's Python workers import what `foreachBatch` refers to
    )

    @retry(retry=retry_if_exception_type(OSError), stop=stop_after_delay(60), wait=wait_fixed(0.1), reraise=True)
    def connect() -> None:
        if server.poll() is not None:
            raise SystemExit(f"the Connect server ended with exit code {server.returncode}")
        socket.create_connection(("127.0.0.1", port), 1).close()

    connect()
    return port


def main() -> None:
    args = parser.parse_args()
    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{start_server()}").getOrCreate()
    pipeline = "flights-by-connect"
    once = PostgresAppend(args.postgres, args.table, pipeline=pipeline, checkpoint=args.checkpoint)
    sink = plain_append(args.postgres, args.table) if args.naive else once
    flights = flights_with_planes(spark, args.kafka, args.topic, args.planes)
    query = flights.writeStream.foreachBatch(sink).option("checkpointLocation", args.checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
