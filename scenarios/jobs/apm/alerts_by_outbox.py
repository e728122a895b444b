"""Alerts through an outbox: committed in the transaction of the statistics, and sent after it, each with a key.

What is in the outbox and not marked as sent is sent by the next batch, or by the replay of this one. So an alert is never lost,
and may be sent twice with the same key: a receiver that keeps one request per key has it once.
"""

from __future__ import annotations

import psycopg
from common import run
from minutes import INSERT, alerts, minutes, parsed, send
from pyspark.sql import DataFrame

ENTER = "INSERT INTO outbox (key, body) VALUES (%s, %s) ON CONFLICT (key) DO NOTHING"
WAITING = "SELECT key, body FROM outbox WHERE NOT sent ORDER BY number"
MARK = "UPDATE outbox SET sent = true WHERE key = %s"

args = parsed(__doc__)


def write(batch: DataFrame, _batch_id: int) -> None:
    rows = batch.collect()
    with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
        cursor.executemany(INSERT, rows)
        cursor.executemany(ENTER, list(alerts(rows)))
    with psycopg.connect(args.postgres, autocommit=True) as connection:
        for key, body in connection.execute(WAITING).fetchall():
            send(args.webhook, body, key)
            connection.execute(MARK, (key,))


run(minutes("alerts-by-outbox", args), write, args.checkpoint)
