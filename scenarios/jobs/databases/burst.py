"""Two stages: a shop that sends orders to a topic, and a booking that has room for two of them at a time.

``--full=drop``  it reads all that wait, and keeps the newest two
``--full=wait``  the remedy: it reads no more than two, and the others wait in the topic
"""

from __future__ import annotations

import os
import sys
from collections import deque
from itertools import islice

import psycopg
from booked import Booked
from member import Member
from topic import Topic

ROOM = 2


def shop(member: Member, placed: Topic) -> None:
    for order in member.messages():
        member.next_effect("placed")
        placed.send(order, order["key"])


def booking(member: Member, placed: Topic, booked: Booked, full: str) -> None:
    for _ in member.messages():
        waiting = placed.since(booked.position())
        for offset, order in deque(waiting, maxlen=ROOM) if full == "drop" else list(islice(waiting, ROOM)):
            member.next_effect("booked")
            booked.add(offset, order)


if os.environ["ONCEPROOF_CONSUMER"] == "shop":
    shop(Member(), Topic("placed"))
else:
    with psycopg.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True) as connection:
        booking(Member(), Topic("placed"), Booked(connection), sys.argv[1].removeprefix("--full="))
