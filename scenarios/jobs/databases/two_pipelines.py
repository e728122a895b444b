"""Two pipelines read the same orders, each in a consumer group of its own. How far each is, is recorded with its rows in Postgres.

A start continues after the last order that is recorded. ``--progress=topic`` keeps the record under the name of the topic that is
read. ``--progress=pipeline`` is the remedy: each pipeline has a name of its own.
"""

from __future__ import annotations

import os
import sys

import psycopg
from member import Member
from psycopg import sql

ROW = sql.SQL("INSERT INTO {} (id, key) VALUES (%(id)s, %(key)s)").format(sql.Identifier(os.environ["ONCEPROOF_TABLE"]))
RECORD = """
    INSERT INTO progress (name, last) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET last = EXCLUDED.last
"""

name = os.environ["ONCEPROOF_GROUP" if "--progress=pipeline" in sys.argv else "ONCEPROOF_TOPICS"]
member = Member()
with psycopg.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True) as database:
    recorded = database.execute("SELECT last FROM progress WHERE name = %s", [name]).fetchone()
    done = recorded[0] if recorded is not None else 0
    for order in member.messages():
        if order["id"] <= done:  # it was delivered twice, and the record says that its row is there
            continue
        member.next_effect(os.environ["ONCEPROOF_TABLE"])
        with database.transaction():
            database.execute(ROW, order)
            database.execute(RECORD, [name, order["id"]])
