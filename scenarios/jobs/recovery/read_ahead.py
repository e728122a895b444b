"""Books orders: a row in a table. While it works on an order it prepares those that wait already, in its memory, which is limited.

``--ahead=all``  all that wait
``--ahead=few``  the remedy: the next two; the others wait
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import psycopg
from member import Member

FEW = 2
#: What an order needs in memory once it is prepared, bytes. It is only reserved, so a run needs none of it.
PREPARED = 256 << 20


def limit_memory() -> None:
    """As the limit of a container does: with more orders than the one of the moment and FEW others, the process fails."""
    status = Path("/proc/self/status").read_text().split()
    used = int(status[status.index("VmData:") + 1]) << 10
    most = used + (1 + FEW) * PREPARED + PREPARED // 2
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def book(database: psycopg.Connection, order: dict[str, object], others: int) -> None:
    prepared = [bytearray(PREPARED) for _ in range(1 + others)]
    database.execute("INSERT INTO booked VALUES (%(id)s, %(key)s) ON CONFLICT DO NOTHING", order)
    prepared.clear()


with psycopg.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True) as connection:
    member = Member()
    limit_memory()
    for message in member.messages():
        member.next_effect("booked")
        waiting = member.read_ahead()
        book(connection, message, waiting if "--ahead=all" in sys.argv else min(waiting, FEW))
