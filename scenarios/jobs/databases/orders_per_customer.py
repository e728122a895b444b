"""Event sourcing: each order is an event in a table, and the number of orders of each customer follows from the events.

To start quickly, the numbers are saved as a snapshot after each event. ``--covers`` is the remedy: the snapshot holds the last
event that it covers, and a start adds the events after it.
"""

from __future__ import annotations

import os
import sys
from collections import Counter

import psycopg
from member import Member

ADD_EVENT = "INSERT INTO events (id, key) VALUES (%(id)s, %(key)s) ON CONFLICT DO NOTHING"
SAVE = """
    INSERT INTO customers (key, orders, last_event) VALUES (%s, %s, %s)
    ON CONFLICT (key) DO UPDATE SET orders = EXCLUDED.orders, last_event = EXCLUDED.last_event
"""

member = Member()
with psycopg.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True) as database:
    orders: Counter[str] = Counter(dict(database.execute("SELECT key, orders FROM customers").fetchall()))
    if "--covers" in sys.argv:
        later = "SELECT key FROM events WHERE id > (SELECT coalesce(max(last_event), 0) FROM customers)"
        orders.update(key for (key,) in database.execute(later).fetchall())
    for event in member.messages():
        member.next_effect("events")
        if database.execute(ADD_EVENT, event).rowcount:  # one that is there already was delivered twice, and is counted
            orders[event["key"]] += 1
        member.next_effect("customers")
        database.execute(SAVE, [event["key"], orders[event["key"]], event["id"]])
