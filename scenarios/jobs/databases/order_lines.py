"""Two processes: a shop that writes the three lines of an order in one transaction, and a connector that publishes each line.

The connector reads the changes from a replication slot at each of its own messages. Where it keeps its position in them:

``--position=first``       the slot moves past the changes when they are read, before any is published
``--position=last``        the slot moves when all are published
``--position=with-effect`` the remedy: each record carries its position, and the connector continues after that of the last record
"""

from __future__ import annotations

import os
import sys

import psycopg
from member import Member
from slot import Slot
from topic import Topic


def shop(member: Member, database: psycopg.Connection) -> None:
    for order in member.messages():
        member.next_effect("lines")
        with database.transaction():
            for line in (1, 2, 3):
                database.execute("INSERT INTO lines (id, line) VALUES (%s, %s)", [order["id"], line])


def connector(member: Member, database: psycopg.Connection, position: str) -> None:
    slot, published = Slot(database, "lines"), Topic("published")
    if not slot.exists():
        slot.create()
    for _ in member.messages():
        changes = slot.get() if position == "first" else slot.peek()
        done = published.newest_position() if position == "with-effect" else ""
        for change in changes:
            if change.position > done:
                member.next_effect("published")
                published.send({name: int(value or 0) for name, value in change.row.items()}, position=change.position)
        if changes and position != "first":
            slot.advance(changes[-1])


with psycopg.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True) as connection:
    if os.environ["ONCEPROOF_CONSUMER"] == "shop":
        shop(Member(), connection)
    else:
        connector(Member(), connection, sys.argv[1].removeprefix("--position="))
