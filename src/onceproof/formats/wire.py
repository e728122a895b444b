"""Confluent's wire format: a zero byte, the schema's id in four bytes (big-endian), for Protobuf the message's indexes, the value."""

from __future__ import annotations

import struct
from collections.abc import Sequence

MAGIC = 0
_HEADER = struct.Struct(">bI")
#: More are a mistake, or a value that is not Protobuf.
_MOST_INDEXES = 64


def framed(schema_id: int, body: bytes, indexes: Sequence[int] | None = None) -> bytes:
    """The value with its header. ``indexes``: where the message is among those of its file, for Protobuf."""
    return _HEADER.pack(MAGIC, schema_id) + (b"" if indexes is None else _indexes(indexes)) + body


def unframed(value: bytes) -> tuple[int, bytes]:
    """The schema's id, and the rest. Raises `ValueError` for a value without the header."""
    if len(value) < _HEADER.size:
        raise ValueError(f"{len(value)} bytes are too short for Confluent's header of {_HEADER.size} bytes")
    magic, schema_id = _HEADER.unpack_from(value)
    if magic != MAGIC:
        raise ValueError(f"it begins with byte {magic & 0xFF}, and Confluent's header begins with 0")
    return schema_id, value[_HEADER.size :]


def message_indexes(body: bytes) -> tuple[tuple[int, ...], bytes]:
    """The indexes at the beginning of a Protobuf value, and the rest. Raises `ValueError`."""
    count, at = _varint(body, 0)
    if count == 0:
        return (0,), body[at:]  # the short form of the first message
    if not 0 < count <= _MOST_INDEXES:
        raise ValueError(f"its header has {count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = _varint(body, at)
        indexes.append(index)
    return tuple(indexes), body[at:]


def _indexes(indexes: Sequence[int]) -> bytes:
    return b"\0" if list(indexes) == [0] else b"".join(map(_zigzag, (len(indexes), *indexes)))


def _zigzag(number: int) -> bytes:
    rest, written = number << 1, bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*written, rest])


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """A zigzag number, which is never negative here, and where the next one begins."""
    number = 0
    for shift in range(0, 35, 7):
        if at >= len(body):
            raise ValueError("its message indexes are cut off")
        byte = body[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number & 1:
                raise ValueError("its header has a negative message index")
            return number >> 1, at
    raise ValueError("its header has a message index that is too long")
