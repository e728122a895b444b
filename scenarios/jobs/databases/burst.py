"""Two stages: a shop that sends orders to a topic, and a booking that has memory for a few of them at a time.

``--full=keep``  it reads all that wait, and keeps them in memory until they are booked
``--full=drop``  it reads all that wait, and keeps the newest two
``--full=wait``  the remedy: it reads no more than two, and the others wait in the topic

Its memory is limited, as by the limit of a container: with one order more than it can keep, it fails.
"""

from __future__ import annotations

import os
import resource
import sys
from collections import deque
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import psycopg
from booked import Booked
from member import Member
from topic import Topic

ROOM = 2
#: What the work on one order needs, bytes. It is only reserved, so a run needs none of it.
WORK = 256 << 20


def shop(member: Member, placed: Topic) -> None:
    for order in member.messages():
        member.next_effect("placed")
        placed.send(order, order["key"])


def booking(member: Member, placed: Topic, booked: Booked, full: str) -> None:
    limit_memory()
    for _ in member.messages():
        waiting = ((offset, order, bytearray(WORK)) for offset, order in placed.since(booked.position()))
        taken: Iterable[tuple[int, dict[str, object], bytearray]]
        if full == "drop":
            taken = deque(waiting, maxlen=ROOM)
        else:
            taken = list(waiting if full == "keep" else islice(waiting, ROOM))
        for offset, order, _ in taken:
            member.next_effect("booked")
            booked.add(offset, order)


def limit_memory() -> None:
    """For one order more than there is room for, because a full deque lets go of the oldest one only when it has the next."""
    status = Path("/proc/self/status").read_text().split()
    used = int(status[status.index("VmData:") + 1]) << 10
    most = used + (ROOM + 1) * WORK + WORK // 2
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


if os.environ["ONCEPROOF_CONSUMER"] == "shop":
    shop(Member(), Topic("placed"))
else:
    with psycopg.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True) as connection:
        booking(Member(), Topic("placed"), Booked(connection), sys.argv[1].removeprefix("--full="))
