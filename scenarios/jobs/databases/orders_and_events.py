"""Takes orders: writes each one to the database, then announces it in a topic. No transaction spans the two writes.

``--outbox`` is the remedy: the announcement is a row in the order's transaction, and a relay publishes it.
"""

from __future__ import annotations

import os
import sys

import outbox
import psycopg
from member import Member
from topic import Topic

INSERT = "INSERT INTO orders (id, key) VALUES (%(id)s, %(key)s) ON CONFLICT DO NOTHING"

member, placed = Member(), Topic("placed")
with psycopg.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True) as database:
    for order in member.messages():
        member.next_effect("orders")
        with database.transaction():
            is_new = database.execute(INSERT, order).rowcount == 1
            if is_new and "--outbox" in sys.argv:
                outbox.announce(database, order["key"], order)
        if "--outbox" in sys.argv:
            member.next_effect("placed")
            outbox.relay(database, placed)
        elif is_new:  # an order that is there already was delivered twice, and is done
            member.next_effect("placed")
            placed.send(order, order["key"])
