"""Charges each order: a row in a table, unless the order is charged already. The database has a replica, which takes the reads.

``--asks=replica``  it asks the replica whether the order is charged
``--asks=primary``  the remedy: it asks where it writes
"""

from __future__ import annotations

import os
import sys

import psycopg
from member import Member

PRIMARY, REPLICA = os.environ["ONCEPROOF_POSTGRES"], os.environ["ONCEPROOF_POSTGRES_REPLICA"]
ASKED = PRIMARY if "--asks=primary" in sys.argv else REPLICA

with psycopg.connect(PRIMARY, autocommit=True) as database, psycopg.connect(ASKED, autocommit=True) as asked:
    member = Member()
    for order in member.messages():
        if asked.execute("SELECT FROM charges WHERE id = %(id)s", order).rowcount:
            continue  # delivered again
        member.next_effect("charges")
        database.execute("INSERT INTO charges (id, key) VALUES (%(id)s, %(key)s)", order)
