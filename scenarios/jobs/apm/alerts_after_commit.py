"""Alerts that no replay sends again: the statistics are committed first, and only minutes that are new are worth an alert.

If the job fails between the two, its replay finds no minute that is new, and sends nothing.
"""

from __future__ import annotations

import psycopg
from common import run
from minutes import INSERT, alerts, minutes, parsed, send
from pyspark.sql import DataFrame

args = parsed(__doc__)


def write(batch: DataFrame, _batch_id: int) -> None:
    rows = batch.collect()
    with psycopg.connect(args.postgres) as connection, connection.cursor() as cursor:
        new = [row for row in rows if cursor.execute(INSERT, row).rowcount == 1]
    for _, body in alerts(new):
        send(args.webhook, body)


run(minutes("alerts-after-commit", args), write, args.checkpoint)
