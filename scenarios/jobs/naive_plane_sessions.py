"""The working days of each plane as in `plane_sessions`, with state that survives, and a sink that does not record its progress."""

from __future__ import annotations

import argparse

from common import STATEFUL, departures, plain_append, spark_session
from plane_sessions import sessions

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kafka", required=True, help="bootstrap servers")
parser.add_argument("--topic", default="flights", help="input topic")
parser.add_argument("--postgres", required=True, help="libpq URI; the password comes from PGPASSFILE")
parser.add_argument("--table", default="plane_sessions", help="table to append to")
parser.add_argument("--checkpoint", required=True, help="checkpoint folder of the query")


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("naive-plane-sessions", STATEFUL)
    sink = plain_append(args.postgres, args.table)
    rows = sessions(departures(spark, args.kafka, args.topic))

    query = (
        rows.writeStream.foreachBatch(sink).outputMode("append").option("checkpointLocation", args.checkpoint).start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
