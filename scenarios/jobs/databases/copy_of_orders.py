"""Two processes: a shop that writes orders, and a copier that keeps a copy of them: first a snapshot, then every change.

The copier works at each of its own messages. The copy and the copier's position in the changes are in one transaction.

``--begin=snapshot``  it copies what is there, then creates a replication slot for what comes
``--begin=slot``      it creates the slot, then copies what is there
``--begin=exported``  the remedy: it copies the snapshot that the creation of the slot exports. A slot whose copy is not complete
                      is dropped, and it begins again
"""

from __future__ import annotations

import os
import sys

import psycopg
from member import Member
from psycopg import sql
from slot import Slot

DATABASE = os.environ["ONCEPROOF_POSTGRES"]
INSERT = "INSERT INTO copied (id, key) VALUES (%s, %s)"


def shop(member: Member, database: psycopg.Connection) -> None:
    for order in member.messages():
        member.next_effect("orders")
        database.execute("INSERT INTO orders VALUES (%(id)s, %(key)s) ON CONFLICT DO NOTHING", order)


def copier(member: Member, database: psycopg.Connection, begin: str) -> None:
    slot = Slot(database, "orders")
    for _ in member.messages():
        if begin == "exported" and not copied(database):
            from_exported_snapshot(member, database, slot)
        if begin == "slot" and not slot.exists():
            member.next_effect("slot")
            slot.create()
        if not copied(database):
            member.next_effect("copied")
            copy(database)
        if not slot.exists():
            member.next_effect("slot")
            slot.create()
        member.next_effect("copied")
        follow(database, slot)


def from_exported_snapshot(member: Member, database: psycopg.Connection, slot: Slot) -> None:
    if slot.exists():
        slot.drop()
    with psycopg.connect(DATABASE, replication="database", autocommit=True) as creator:
        member.next_effect("slot")
        create = sql.SQL("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput (SNAPSHOT 'export')")
        created = creator.execute(create.format(sql.Identifier(slot.name))).fetchone()
        assert created is not None, "the command returns a row"
        member.next_effect("copied")
        copy(database, created[2])  # the snapshot lasts as long as this connection does nothing else


def copied(database: psycopg.Connection) -> bool:
    return database.execute("SELECT FROM copier").rowcount == 1


def copy(database: psycopg.Connection, snapshot: str | None = None) -> None:
    with database.transaction():
        database.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if snapshot is not None:
            database.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        for order in database.execute("SELECT id, key FROM orders ORDER BY id").fetchall():
            database.execute(INSERT, order)
        database.execute("INSERT INTO copier (position) VALUES ('')")


def follow(database: psycopg.Connection, slot: Slot) -> None:
    changes = slot.peek()
    with database.transaction():
        found = database.execute("SELECT position FROM copier FOR UPDATE").fetchone()
        assert found is not None, "copied before"
        for change in changes:
            if change.position > found[0]:
                database.execute(INSERT, [change.row["id"], change.row["key"]])
                database.execute("UPDATE copier SET position = %s", [change.position])
    if changes:
        slot.advance(changes[-1])


with psycopg.connect(DATABASE, autocommit=True) as connection:
    if os.environ["ONCEPROOF_CONSUMER"] == "shop":
        shop(Member(), connection)
    else:
        copier(Member(), connection, sys.argv[1].removeprefix("--begin="))
