"""An outbox: announcements are rows, written in the transaction of what they announce. A relay publishes them in order.

One process at a time relays, also when each of several has a relay of its own. A relay that dies between a record and the
deletion of its row does not send it again: the last record says how far the topic is.
"""

from __future__ import annotations

import json
from typing import Any

import psycopg
from topic import Topic

#: The table, for `prepare: sql` of a scenario:  CREATE TABLE outbox (number bigserial PRIMARY KEY, key text, value json)


def announce(database: psycopg.Connection, key: str, value: dict[str, Any]) -> None:
    """Call it in the transaction of what is announced."""
    database.execute("INSERT INTO outbox (key, value) VALUES (%s, %s)", [key, json.dumps(value)])


def relay(database: psycopg.Connection, topic: Topic) -> None:
    with database.transaction():
        # It waits for inserts that are not committed, and others wait for it: so numbers are in the order of the commits.
        database.execute("LOCK TABLE outbox IN EXCLUSIVE MODE")
        done = int(topic.newest_position() or 0)
        for number, key, value in database.execute("SELECT number, key, value FROM outbox ORDER BY number").fetchall():
            if number > done:
                topic.send(value, key, position=str(number))
        database.execute("DELETE FROM outbox")
