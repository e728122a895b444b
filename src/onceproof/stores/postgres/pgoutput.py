"""Decodes Postgres' ``pgoutput`` messages, protocol version 1, into commits and changes.

Source: PostgreSQL documentation, "Logical Replication Message Formats" and "Logical Streaming Replication Parameters".
The messages come from ``pg_logical_slot_peek_binary_changes``: one message per row, with whole transactions in commit order.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from onceproof.base.errors import HistoryError

#: Microseconds from 1970 to 2000, when Postgres' own clock begins.
_EPOCH_US = 946_684_800_000_000

#: Column -> text from the type's output function, or None. A column that the message lacks is left out.
Row = Mapping[str, str | None]


@dataclass(frozen=True)
class Begin:
    xid: int
    lsn: int
    """Position of the transaction's commit record."""
    commit_time_us: int
    """The server's wall clock, microseconds since 1970."""


@dataclass(frozen=True)
class Commit:
    lsn: int


@dataclass(frozen=True)
class Relation:
    oid: int
    schema: str
    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """A changed row. ``before`` is None if the message has no old row (an insert, or no REPLICA IDENTITY FULL)."""

    op: str  # insert | update | delete
    relation: Relation
    before: Row | None
    after: Row | None


@dataclass(frozen=True)
class Truncate:
    relations: tuple[Relation, ...]


Message = Begin | Commit | Change | Truncate


class Decoder:
    """Decodes messages, and keeps the relations that the stream has announced: changes name them only by number."""

    def __init__(self) -> None:
        self._relations: dict[int, Relation] = {}

    def decode(self, data: bytes) -> Message | None:
        """The message, or None for one that changes no row (Relation, Type, Origin, Message).

        Raises `HistoryError` for bytes that are not such a message, and for a change of a relation that was not announced.
        """
        try:
            return self._decode(_Cursor(data))
        except (struct.error, IndexError, ValueError) as error:
            shown = data[:24].hex(" ")
            hint = "the slot must use pgoutput with proto_version 1"
            raise HistoryError(f"not a pgoutput message ({error}): {len(data)} bytes, {shown}", hint=hint) from error

    def _decode(self, read: _Cursor) -> Message | None:
        kind = read.char()
        if kind == "I":
            relation = self._relation(read.int32())
            read.char()  # always N
            return Change("insert", relation, None, _row(read, relation))
        if kind == "U":
            return self._update(read)
        if kind == "D":
            relation = self._relation(read.int32())
            read.char()  # K: only the key columns are filled; O: the whole old row
            return Change("delete", relation, _row(read, relation), None)
        if kind == "T":
            count = read.int32()
            read.int8()  # options: with CASCADE, all tables are listed here; RESTART IDENTITY concerns sequences
            return Truncate(tuple(self._relation(read.int32()) for _ in range(count)))
        if kind == "B":
            lsn, time_us, xid = read.int64(), read.int64(), read.int32()
            return Begin(xid, lsn, time_us + _EPOCH_US)
        if kind == "C":
            read.int8()
            return Commit(read.int64())
        if kind == "R":
            self._announce(read)
        elif kind not in "YOM":
            raise ValueError(f"unknown message type {kind!r}")
        return None

    def _update(self, read: _Cursor) -> Change:
        relation = self._relation(read.int32())
        marker, before = read.char(), None
        if marker in "KO":
            before = _row(read, relation)
            read.char()  # N
        after = _row(read, relation)
        if before is not None:
            # An unchanged large value is not sent again; with REPLICA IDENTITY FULL it is in the old row.
            after = {name: after.get(name, before.get(name)) for name in relation.columns if name in {*after, *before}}
        return Change("update", relation, before, after)

    def _announce(self, read: _Cursor) -> None:
        oid, schema, table = read.int32(), read.text(), read.text()
        read.char()  # replica identity setting
        columns = []
        for _ in range(read.int16()):
            read.int8()  # 1: part of the key
            columns.append(read.text())
            read.int32()  # type
            read.int32()  # type modifier
        # An empty schema name is pg_catalog.
        self._relations[oid] = Relation(oid, schema or "pg_catalog", table, tuple(columns))

    def _relation(self, oid: int) -> Relation:
        if oid not in self._relations:
            raise ValueError(f"a change of relation {oid}, which was not announced")
        return self._relations[oid]


def _row(read: _Cursor, relation: Relation) -> dict[str, str | None]:
    count = read.int16()
    if count != len(relation.columns):
        raise ValueError(f"{count} values for the {len(relation.columns)} columns of {relation.table}")
    row: dict[str, str | None] = {}
    for name in relation.columns:
        kind = read.char()
        if kind == "t":
            row[name] = read.bytes(read.int32()).decode("utf-8")
        elif kind == "n":
            row[name] = None
        elif kind != "u":  # u: unchanged and not sent
            raise ValueError(f"unknown kind of value {kind!r}")
    return row


class _Cursor:
    """Reads big-endian fields one after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def bytes(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise IndexError("it ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def char(self) -> str:
        return self.bytes(1).decode("latin-1")

    def int8(self) -> int:
        return self.bytes(1)[0]

    def int16(self) -> int:
        return int(struct.unpack(">h", self.bytes(2))[0])

    def int32(self) -> int:
        return int(struct.unpack(">I", self.bytes(4))[0])

    def int64(self) -> int:
        return int(struct.unpack(">q", self.bytes(8))[0])

    def text(self) -> str:
        end = self._data.index(0, self._at)
        value = self._data[self._at : end].decode("utf-8")
        self._at = end + 1
        return value
