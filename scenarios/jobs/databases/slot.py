"""The changes of a table, from a logical replication slot of Postgres and its plugin pgoutput.

Source: PostgreSQL documentation, "Logical Replication Message Formats". Only inserts are decoded: the tables get nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql


@dataclass(frozen=True)
class Change:
    position: str
    """Grows from change to change: of the commit in the log, and of the change within its transaction."""
    row: dict[str, str | None]
    ends: int
    """Position at which its transaction ends in the log."""


class Slot:
    def __init__(self, database: psycopg.Connection, table: str) -> None:
        self._database = database
        self.name = "slot_" + re.sub(r"[^a-z0-9]", "_", os.environ["ONCEPROOF_GROUP"].lower())
        if not database.execute("SELECT FROM pg_publication WHERE pubname = %s", [self.name]).rowcount:
            names = sql.Identifier(self.name), sql.Identifier(table)
            database.execute(sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(*names))

    def exists(self) -> bool:
        found = self._database.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", [self.name])
        return found.rowcount == 1

    def create(self) -> None:
        """From now on the server keeps all changes, until the slot is advanced past them."""
        self._database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [self.name])

    def drop(self) -> None:
        self._database.execute("SELECT pg_drop_replication_slot(%s)", [self.name])

    def get(self) -> list[Change]:
        """The changes since the slot's position, which moves past them at once."""
        return list(_changes(self._read("pg_logical_slot_get_binary_changes")))

    def peek(self) -> list[Change]:
        """The changes since the slot's position, which stays."""
        return list(_changes(self._read("pg_logical_slot_peek_binary_changes")))

    def advance(self, change: Change) -> None:
        """Move the slot past the transaction of this change."""
        to = f"{change.ends >> 32:X}/{change.ends & 0xFFFFFFFF:X}"
        self._database.execute("SELECT pg_replication_slot_advance(%s, %s)", [self.name, to])

    def _read(self, function: str) -> Sequence[tuple[Any, ...]]:
        read = sql.SQL("SELECT data FROM {}(%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)")
        return self._database.execute(read.format(sql.Identifier(function)), [self.name, self.name]).fetchall()


def _changes(messages: Sequence[tuple[Any, ...]]) -> Iterator[Change]:
    columns: dict[bytes, list[str]] = {}
    commit, rows = 0, list[dict[str, str | None]]()
    for (data,) in messages:
        kind, body = data[:1], data[1:]
        if kind == b"B":  # begin: where the transaction commits
            commit, rows = int.from_bytes(body[:8]), []
        elif kind == b"R":  # relation: the columns of a table
            columns[body[:4]] = _names(body[4:])
        elif kind == b"I":  # insert
            rows.append(dict(zip(columns[body[:4]], _values(body[5:]), strict=True)))
        elif kind == b"C":  # commit: flags, where it begins, where it ends
            for number, row in enumerate(rows):
                yield Change(f"{commit:016X}/{number:06}", row, int.from_bytes(body[9:17]))


def _names(relation: bytes) -> list[str]:
    _schema, _table, rest = relation.split(b"\0", 2)
    rest, names = rest[3:], []  # after the replica identity and the number of columns
    while rest:
        name, rest = rest[1:].split(b"\0", 1)
        names.append(name.decode())
        rest = rest[8:]  # after its type
    return names


def _values(row: bytes) -> Iterator[str | None]:
    rest = row[2:]  # after the number of columns
    while rest:
        if rest[:1] == b"n":
            rest = rest[1:]
            yield None
        else:
            size = int.from_bytes(rest[1:5])
            yield rest[5 : 5 + size].decode()
            rest = rest[5 + size :]
