"""Takes orders and writes each to two databases, its payment and its shipment, in two phases: prepare both, then commit both.

Two connections stand for two databases. A third one is the coordinator's own, this program's. A prepared transaction outlives the
program, so at its start it ends those that it has left behind, and their orders then count as done or as new:

``--in-doubt=roll-back`` all of them
``--in-doubt=decided``   the remedy: it commits those whose commit it had decided. It logs each decision before it commits the first
"""

from __future__ import annotations

import os
import sys

import psycopg
from member import Member

POSTGRES, GROUP = os.environ["ONCEPROOF_POSTGRES"], os.environ["ONCEPROOF_GROUP"]
PAY, SHIP = "INSERT INTO payments VALUES (%(id)s, %(key)s)", "INSERT INTO shipments VALUES (%(id)s, %(key)s)"
LOGS = "--in-doubt=decided" in sys.argv


def recover(database: psycopg.Connection, coordinator: psycopg.Connection) -> None:
    decided = {name for (name,) in coordinator.execute("SELECT transaction FROM decisions")} if LOGS else set()
    for prepared in database.tpc_recover():
        if not prepared.gtrid.startswith(f"{GROUP}/"):
            continue  # another program's
        if prepared.gtrid in decided:
            database.tpc_commit(prepared)
        else:
            database.tpc_rollback(prepared)


with (
    psycopg.connect(POSTGRES) as payments,
    psycopg.connect(POSTGRES) as shipments,
    psycopg.connect(POSTGRES, autocommit=True) as coordinator,
):
    recover(payments, coordinator)
    member = Member()
    for order in member.messages():
        if coordinator.execute("SELECT FROM payments WHERE id = %(id)s", order).rowcount:
            continue  # delivered again
        transaction = f"{GROUP}/{order['id']}"
        member.next_effect("payments")
        for database, insert, part in ((payments, PAY, "payment"), (shipments, SHIP, "shipment")):
            database.tpc_begin(database.xid(0, transaction, part))
            database.execute(insert, order)
            database.tpc_prepare()
        if LOGS:
            coordinator.execute("INSERT INTO decisions VALUES (%s)", [transaction])
        payments.tpc_commit()
        member.next_effect("shipments")
        shipments.tpc_commit()
