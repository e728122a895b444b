"""Two processes: one writes the prices of products to a compacted topic, the other builds a table from it at a message of its own.

It builds the table if that is empty, record by record. ``--at-once`` is the remedy: it builds the table in one transaction.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext

import psycopg
from member import Member
from topic import Topic

PUT = "INSERT INTO price_list (product, price) VALUES (%(product)s, %(price)s) ON CONFLICT (product) DO UPDATE SET price = %(price)s"


def pricing(member: Member, log: Topic) -> None:
    log.compact()
    for change in member.messages():
        member.next_effect("prices")
        value = {"product": change["product"], "price": change["price"]}
        log.send(value if change["price"] is not None else None, change["product"])


def view(member: Member, log: Topic, database: psycopg.Connection) -> None:
    for _ in member.messages():
        if database.execute("SELECT FROM price_list").rowcount:
            continue
        with database.transaction() if "--at-once" in sys.argv else nullcontext():
            for product, value in log.records():
                member.next_effect("price_list")
                if value is not None:
                    database.execute(PUT, value)
                else:
                    database.execute("DELETE FROM price_list WHERE product = %s", [product])


if os.environ["ONCEPROOF_CONSUMER"] == "pricing":
    pricing(Member(), Topic("prices"))
else:
    with psycopg.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True) as connection:
        view(Member(), Topic("prices"), connection)
