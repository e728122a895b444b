"""Keeps the prices of products: the log is a compacted topic, the view is in memory and published as a table.

A price of null takes the product off the list: a tombstone in the log. A start restores the view from the log. ``--tombstones``
is the remedy: the restore, too, removes what a tombstone deletes.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import psycopg
from member import Member
from topic import Topic

member, log = Member(), Topic("prices")
log.compact()
view: dict[str, Any] = {}
for product, value in log.records():
    if value is not None:
        view[product] = value["price"]
    elif "--tombstones" in sys.argv:
        view.pop(product, None)

with psycopg.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True) as database:
    for change in member.messages():
        product = change["product"]
        member.next_effect("prices")
        if change["price"] is not None:
            log.send(change, product)
            view[product] = change["price"]
        else:
            log.send(None, product)
            view.pop(product, None)
        member.next_effect("price_list")
        with database.transaction():
            database.execute("DELETE FROM price_list")
            for row in view.items():
                database.execute("INSERT INTO price_list (product, price) VALUES (%s, %s)", row)
