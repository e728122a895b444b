"""Inserts a row for each order. If the database does not answer in time, it gives up and inserts the row again.

It waits half a second for the first answer, and twice as long each time. An order is inserted as the table allows: only with a unique
key does the second attempt find the row of the first.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import psycopg
from member import Member

INSERT = "INSERT INTO processed (id, key) VALUES (%(id)s, %(key)s) ON CONFLICT DO NOTHING"
PATIENCE_S = 0.5
MOST_ATTEMPTS = 5


async def insert(order: dict[str, Any]) -> None:
    for attempt in range(MOST_ATTEMPTS):
        async with await psycopg.AsyncConnection.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True) as database:
            try:
                async with asyncio.timeout(PATIENCE_S * 2**attempt):
                    await database.execute(INSERT, order)
                return
            except TimeoutError:
                continue
    raise SystemExit(f"the database did not answer {MOST_ATTEMPTS} times")


member = Member()
for order in member.messages():
    member.next_effect("processed")
    asyncio.run(insert(order))
