"""Charges each order, with its receipt. If the database does not answer in time, it looks whether the order is charged, and if not,
charges it again.

The receipt is large. On a slow network it is still on its way when the consumer looks. Only a unique key of the table makes the second
charge find the first.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import psycopg
from member import Member

INSERT = "INSERT INTO charges (id, key, receipt) VALUES (%(id)s, %(key)s, %(receipt)s) ON CONFLICT DO NOTHING"
CHARGED = "SELECT FROM charges WHERE id = %(id)s"
RECEIPT = 50_000 * "."
PATIENCE_S = (1, 8)
"""For the first answer, and for the second."""


async def connected() -> psycopg.AsyncConnection:
    return await psycopg.AsyncConnection.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True)


async def charge(database: psycopg.AsyncConnection, order: dict[str, Any]) -> psycopg.AsyncConnection:
    """Return the connection over which the database has answered."""
    for patience_s in PATIENCE_S:
        charging = asyncio.ensure_future(database.execute(INSERT, {**order, "receipt": RECEIPT}))
        await asyncio.wait({charging}, timeout=patience_s)
        if charging.done():
            charging.result()
            return database
        await database.close()  # before the statement is cancelled: psycopg would wait until the server has ended it
        charging.cancel()
        await asyncio.wait({charging})
        database = await connected()
        if (await database.execute(CHARGED, order)).rowcount:
            return database
    raise SystemExit(f"the database did not answer within {PATIENCE_S[-1]} s")


member = Member()
with asyncio.Runner() as runner:
    connection = runner.run(connected())
    for order in member.messages():
        member.next_effect("processed")
        connection = runner.run(charge(connection, order))
