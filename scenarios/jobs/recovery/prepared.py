"""A sink that writes each order in a prepared transaction, and a cleaner that rolls back transactions that were left prepared.

The sink prepares the transaction, writes its checkpoint, a record of a topic that names order and transaction, and then commits. At
its start it commits the transaction of its last checkpoint, which may have been committed long ago: Postgres then answers that there
is no such transaction. The same answer comes if someone has rolled it back meanwhile. An order that is done is not done again.

``--missing=committed``  a transaction that does not exist counts as committed
``--missing=look``       the remedy: its order counts as done if the position that was written in the transaction is past it
"""

from __future__ import annotations

import os
import sys

import psycopg
from booked import ROW
from member import Member
from topic import Topic

GROUP = os.environ["ONCEPROOF_GROUP"]
LOOKS = "--missing=look" in sys.argv


def sink(member: Member, database: psycopg.Connection, checkpoints: Topic) -> None:
    done = resumed(database, checkpoints)
    for order in member.messages():
        if order["id"] <= done:
            continue  # delivered again
        transaction = database.xid(0, GROUP, str(order["id"]))
        member.next_effect("booked")
        database.tpc_begin(transaction)
        database.execute(ROW, order)
        database.execute("UPDATE progress SET next = %(id)s", order)
        database.tpc_prepare()
        checkpoints.send(order)
        member.next_effect("booked")
        database.tpc_commit()


def resumed(database: psycopg.Connection, checkpoints: Topic) -> int:
    """Commit the transaction of the last checkpoint; return the order up to which all are done."""
    written = [order["id"] for _, order in checkpoints.since(0)]
    if not written:
        return 0
    try:
        database.tpc_commit(database.xid(0, GROUP, str(written[-1])))
    except psycopg.errors.UndefinedObject:
        if LOOKS:
            with database.transaction():
                (row,) = database.execute("SELECT next FROM progress").fetchall()
            return int(row[0])
    return int(written[-1])


def cleaner(member: Member, database: psycopg.Connection) -> None:
    """With each message it rolls back what was prepared at its last one already: a transaction is prepared for a moment only."""
    old = set[str]()
    for _ in member.messages():
        prepared = [xid for xid in database.tpc_recover() if xid.gtrid == GROUP]
        for xid in prepared:
            if xid.bqual in old:
                database.tpc_rollback(xid)
        old = {str(xid.bqual) for xid in prepared}


with psycopg.connect(os.environ["ONCEPROOF_POSTGRES"]) as connection:
    if os.environ["ONCEPROOF_CONSUMER"] == "sink":
        sink(Member(), connection, Topic("checkpoints"))
    else:
        cleaner(Member(), connection)
