"""The working days of each plane as in `plane_sessions`, with state that survives, and a sink that does not record its progress."""

from __future__ import annotations

from common import STATEFUL, departures, job_parser, plain_append, run, spark_session
from plane_sessions import sessions

parser = job_parser(__doc__, topic="flights", postgres=None, table="plane_sessions")


def main() -> None:
    args = parser.parse_args()
    spark = spark_session("naive-plane-sessions", STATEFUL)
    sink = plain_append(args.postgres, args.table)
    rows = sessions(departures(spark, args.kafka, args.topic))
    run(rows, sink, args.checkpoint)


if __name__ == "__main__":
    main()
