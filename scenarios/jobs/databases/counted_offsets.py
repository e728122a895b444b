"""Two stages: a shop that sends each order in a transaction, and aborts that of every third; and a booking of what it has sent.

The booking records where a batch begins, then writes a row for each of its orders. After a restart it begins the batch again, and
leaves out the orders that are in the table already.

``--done=counted``   it counts offsets: one order for each offset from the beginning of the batch to its position
``--done=compared``  the remedy: the orders before its position
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import psycopg
from booked import Booked
from confluent_kafka import Producer
from member import Member
from topic import Topic

Order = tuple[int, dict[str, Any]]
"""The offset and the value of its record."""


def shop(member: Member) -> None:
    placed = json.loads(os.environ["ONCEPROOF_OUTPUTS"])["placed"]
    settings = {"bootstrap.servers": os.environ["ONCEPROOF_KAFKA"], "transactional.id": os.environ["ONCEPROOF_GROUP"]}
    producer = Producer(settings)
    producer.init_transactions()
    for order in member.messages():
        member.next_effect("placed")
        producer.begin_transaction()
        producer.produce(placed, json.dumps(order), order["key"], partition=0)
        producer.flush()
        if order["id"] % 3 == 1:  # the customer has cancelled it
            producer.abort_transaction()
        else:
            producer.commit_transaction()


def booking(member: Member, placed: Topic, database: psycopg.Connection, done: str) -> None:
    booked = Booked(database)
    for _ in member.messages():
        begin = begin_of_batch(database)
        position = max(begin, booked.position())
        batch = list(placed.since(begin))
        for offset, order in batch[position - begin :] if done == "counted" else after(position, batch):
            member.next_effect("booked")
            booked.add(offset, order)
        if batch:
            last, _order = batch[-1]
            database.execute("UPDATE batch SET begin = %s", [last + 1])


def begin_of_batch(database: psycopg.Connection) -> int:
    found = database.execute("SELECT begin FROM batch").fetchone()
    assert found is not None, "the scenario inserts the row"
    return int(found[0])


def after(position: int, batch: list[Order]) -> list[Order]:
    return [(offset, order) for offset, order in batch if offset >= position]


if os.environ["ONCEPROOF_CONSUMER"] == "shop":
    shop(Member())
else:
    with psycopg.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True) as connection:
        booking(Member(), Topic("placed"), connection, sys.argv[1].removeprefix("--done="))
