"""Alerts as they are often sent: from foreachBatch, when the statistics show them. Then the statistics are written.

No transaction takes a request back: a batch that is replayed sends its alerts again.
"""

from __future__ import annotations

import psycopg
from common import run
from minutes import INSERT, alerts, minutes, parsed, send
from pyspark.sql import DataFrame

args = parsed(__doc__)


def write(batch: DataFrame, _batch_id: int) -> None:
    rows = batch.collect()
    for _, body in alerts(rows):
        send(args.webhook, body)
    with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
        cursor.executemany(INSERT, rows)


run(minutes("alerts-before-commit", args), write, args.checkpoint)
