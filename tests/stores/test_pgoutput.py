"""The decoder of pgoutput, on messages built byte by byte from the Postgres documentation."""

from __future__ import annotations

import struct

import pytest

from onceproof.base.errors import HistoryError
from onceproof.stores.postgres.pgoutput import Begin, Change, Commit, Decoder, Truncate


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def relation(oid: int = 1, name: str = "t", columns: tuple[str, ...] = ("a", "b")) -> bytes:
    body = b"R" + struct.pack(">I", oid) + text("public") + text(name) + b"f" + struct.pack(">h", len(columns))
    return body + b"".join(b"\1" + text(column) + struct.pack(">Ii", 25, -1) for column in columns)


def row(*values: str | type[Ellipsis] | None) -> bytes:
    """A row's values: None is null, ``...`` is unchanged and not sent."""
    parts = [struct.pack(">h", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is ...:
            parts.append(b"u")
        else:
            raw = str(value).encode()
            parts.append(b"t" + struct.pack(">I", len(raw)) + raw)
    return b"".join(parts)


@pytest.fixture
def decoder() -> Decoder:
    decoder = Decoder()
    assert decoder.decode(relation()) is None
    return decoder


def test_begin_and_commit_are_decoded() -> None:
    begin = Decoder().decode(b"B" + struct.pack(">qqI", 4096, 1_000_000, 77))
    assert begin == Begin(xid=77, lsn=4096, commit_time_us=946_684_801_000_000)
    assert Decoder().decode(b"C\0" + struct.pack(">qqq", 4096, 5000, 0)) == Commit(lsn=4096)


def test_an_insert_is_decoded(decoder: Decoder) -> None:
    change = decoder.decode(b"I" + struct.pack(">I", 1) + b"N" + row("é", None))
    assert isinstance(change, Change)
    assert (change.op, change.relation.table, change.before, change.after) == (
        "insert",
        "t",
        None,
        {"a": "é", "b": None},
    )


def test_an_update_without_an_old_row_is_decoded(decoder: Decoder) -> None:
    change = decoder.decode(b"U" + struct.pack(">I", 1) + b"N" + row("x", "y"))
    assert isinstance(change, Change)
    assert (change.before, change.after) == (None, {"a": "x", "b": "y"})


@pytest.mark.parametrize("marker", [b"K", b"O"])
def test_unchanged_values_come_from_the_old_row(decoder: Decoder, marker: bytes) -> None:
    change = decoder.decode(b"U" + struct.pack(">I", 1) + marker + row("x", "big") + b"N" + row("z", ...))
    assert isinstance(change, Change)
    assert (change.before, change.after) == ({"a": "x", "b": "big"}, {"a": "z", "b": "big"})


def test_an_unchanged_value_without_an_old_row_is_left_out(decoder: Decoder) -> None:
    change = decoder.decode(b"U" + struct.pack(">I", 1) + b"N" + row("z", ...))
    assert isinstance(change, Change)
    assert change.after == {"a": "z"}


def test_a_delete_is_decoded(decoder: Decoder) -> None:
    change = decoder.decode(b"D" + struct.pack(">I", 1) + b"O" + row("x", "y"))
    assert isinstance(change, Change)
    assert (change.op, change.before, change.after) == ("delete", {"a": "x", "b": "y"}, None)


def test_a_truncate_of_two_tables_is_decoded(decoder: Decoder) -> None:
    decoder.decode(relation(2, "other"))
    truncate = decoder.decode(b"T" + struct.pack(">I", 2) + b"\1" + struct.pack(">II", 1, 2))
    assert isinstance(truncate, Truncate)
    assert [r.table for r in truncate.relations] == ["t", "other"]


def test_a_relation_that_is_announced_again_gets_its_new_columns(decoder: Decoder) -> None:
    decoder.decode(relation(columns=("a", "b", "c")))
    change = decoder.decode(b"I" + struct.pack(">I", 1) + b"N" + row("1", "2", "3"))
    assert isinstance(change, Change)
    assert change.after == {"a": "1", "b": "2", "c": "3"}


@pytest.mark.parametrize("data", [b"Y" + b"\0" * 8, b"O" + b"\0" * 9])
def test_messages_that_change_no_row_are_skipped(decoder: Decoder, data: bytes) -> None:
    assert decoder.decode(data) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Z",
        b"I" + struct.pack(">I", 99) + b"N" + row("x", "y"),  # never announced
        b"I" + struct.pack(">I", 1) + b"N" + row("x"),  # a column too few
        b"I" + struct.pack(">I", 1) + b"N" + row("x", "y")[:-1],  # cut off
        b"I" + struct.pack(">I", 1) + b"N" + struct.pack(">h", 2) + b"bb",  # binary values are for protocol 2
    ],
)
def test_invalid_messages_are_refused(decoder: Decoder, data: bytes) -> None:
    with pytest.raises(HistoryError, match="not a pgoutput message"):
        decoder.decode(data)
