"""Charges each order: a row in a table. If the database does not answer in time, it gives up and charges the order again.

It waits half a second for the first answer, and twice as long each time. Only a unique key of the table makes the second attempt find
the row of the first.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import psycopg
from member import Member

INSERT = "INSERT INTO charges (id, key) VALUES (%(id)s, %(key)s) ON CONFLICT DO NOTHING"
PATIENCE_S = 0.5
MOST_ATTEMPTS = 5


async def connected() -> psycopg.AsyncConnection:
    return await psycopg.AsyncConnection.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True)


async def charge(database: psycopg.AsyncConnection, order: dict[str, Any]) -> psycopg.AsyncConnection:
    """Return the connection over which the database has answered."""
    for attempt in range(MOST_ATTEMPTS):
        try:
            async with asyncio.timeout(PATIENCE_S * 2**attempt):
                await database.execute(INSERT, order)
            return database
        except TimeoutError:
            await database.close()
            database = await connected()
    raise SystemExit(f"the database did not answer {MOST_ATTEMPTS} times")


member = Member()
with asyncio.Runner() as runner:
    connection = runner.run(connected())
    for order in member.messages():
        member.next_effect("processed")
        connection = runner.run(charge(connection, order))
