"""Charges each order: a row in a table of a database whose replica takes over when it fails.

If the connection breaks, it connects again, and charges the order unless the database has the charge.

``--commit=local``         Postgres answers a commit once it is on the disk of the primary
``--commit=remote_apply``  the remedy: once the replica has applied it too
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import psycopg
from member import Member

COMMIT = sys.argv[1].removeprefix("--commit=")
#: A replica is promoted within a second; the rest is for a busy machine.
PATIENCE_S = 120.0


def connected() -> psycopg.Connection[Any]:
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            database = psycopg.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True, connect_timeout=5)
            database.execute("SELECT set_config('synchronous_commit', %s, false)", [COMMIT])
        except psycopg.OperationalError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.1)
        else:
            return database


def charge(database: psycopg.Connection[Any], order: dict[str, Any]) -> psycopg.Connection[Any]:
    """Return the connection over which the database has answered."""
    while True:
        try:
            if not database.execute("SELECT FROM charges WHERE id = %(id)s", order).rowcount:
                database.execute("INSERT INTO charges (id, key) VALUES (%(id)s, %(key)s)", order)
        except psycopg.OperationalError:
            database = connected()
        else:
            return database


connection = connected()
member = Member()
for message in member.messages():
    member.next_effect("charges")
    connection = charge(connection, message)
