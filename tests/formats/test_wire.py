"""Confluent's header."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceproof.formats import wire


def test_the_header_is_a_zero_byte_and_the_id() -> None:
    assert wire.framed(258, b"body") == b"\x00\x00\x00\x01\x02body"
    assert wire.framed(1, b"body", [0]) == b"\x00\x00\x00\x00\x01\x00body"
    assert wire.framed(1, b"body", [1, 0]) == b"\x00\x00\x00\x00\x01\x04\x02\x00body"


@given(st.integers(0, 2**32 - 1), st.binary(), st.lists(st.integers(0, 1000), min_size=1, max_size=8))
def test_a_framed_value_is_read_as_it_was_written(schema_id: int, body: bytes, indexes: list[int]) -> None:
    assert wire.unframed(wire.framed(schema_id, body)) == (schema_id, body)
    again, rest = wire.unframed(wire.framed(schema_id, body, indexes))
    assert (again, wire.message_indexes(rest)) == (schema_id, (tuple(indexes), body))


@pytest.mark.parametrize(
    ("value", "why"),
    [(b"\x00\x00", "too short"), (b"", "too short"), (b'{"id": 1}', "begins with byte 123")],
)
def test_a_value_without_header_is_refused(value: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        wire.unframed(value)


@pytest.mark.parametrize("body", [b"", b"\x04\x02", b"\x01", b"\xff\xff\xff\xff\xff\xff", b"\x80\x80\x04"])
def test_damaged_message_indexes_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="its "):
        wire.message_indexes(body)
