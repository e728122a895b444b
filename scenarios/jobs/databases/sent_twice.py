"""Two stages: a till that sends each order to a topic, and a booking that writes a row for each record of it, exactly once.

The till sends an order again if it does not know that it has sent it. Idempotence of its Kafka producer does not help: a restarted
process is another producer. The topic then has the order twice. What that does to the rows depends on the table: with a unique key
of the order it does nothing.
"""

from __future__ import annotations

import os

import psycopg
from booked import Booked
from member import Member
from topic import Topic


def till(member: Member, sent: Topic) -> None:
    for order in member.messages():
        member.next_effect("sent")
        sent.send(order, order["key"])


def booking(member: Member, sent: Topic, booked: Booked) -> None:
    for _ in member.messages():
        for offset, order in sent.since(booked.position()):
            member.next_effect("booked")
            booked.add(offset, order)


if os.environ["ONCEPROOF_CONSUMER"] == "till":
    till(Member(), Topic("sent"))
else:
    with psycopg.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True) as connection:
        booking(Member(), Topic("sent"), Booked(connection))
