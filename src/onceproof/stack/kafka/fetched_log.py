"""Copies the headers of a partition's record batches from its leader, for brokers whose files cannot be read from here.

A consumer does not return transaction markers, producers and sequences, but the broker sends them: Fetch returns record batches as they
are in the log. The copy is a log segment in which the records themselves are holes, so it takes little space
(`onceproof.stores.kafka.partition_log` reads only headers and markers).
"""

from __future__ import annotations

import struct
from os import SEEK_END
from pathlib import Path
from typing import IO

from onceproof.base.errors import ServiceFailed
from onceproof.instruments.proxy.kafka_schema import Cursor, Undecodable
from onceproof.stack.kafka.requests import Connection, string

_FETCH, _VERSION = 1, 4
"""The oldest version that brokers of Kafka 4 know, and the first with isolation levels (KIP-98)."""
_AT_ONCE = 4 << 20
_WAIT_MS = 500

_INT16, _INT32, _INT64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_FRAME = struct.Struct(">qi")
_LAST_DELTA = struct.Struct(">i")
_LAST_DELTA_AT = 23
_HEADER = 61
_KEPT = _HEADER + 32
"""Bytes of a batch that are copied: its header, and all of a marker."""


def copy_log(broker: Connection, topic: str, partition: int, start: int, segment: Path) -> int:
    """Add what the partition holds from offset ``start`` up to its end, as of now, to the file ``segment``. Returns that end.

    Raises `OSError` and `ServiceFailed` if the broker is away, refuses, or does not lead the partition; the file is then as before.
    """
    end: int | None = None
    with segment.open("r+b" if segment.exists() else "w+b") as file:
        before = position = file.seek(0, SEEK_END)
        try:
            while end is None or start < end:
                high, records = _fetched(broker, topic, partition, start)
                end = high if end is None else end  # what is written after the first answer came after the end
                after, position = _copy(records, start, position, file)
                if after == start and start < end:
                    raise ServiceFailed(
                        f"{topic}/{partition}: the broker sent no record batch at offset {start} of {end}"
                    )
                start = after
        except BaseException:
            file.truncate(before)
            raise
        file.truncate(position)
    return start


def _copy(records: bytes, start: int, position: int, segment: IO[bytes]) -> tuple[int, int]:
    """Copy the complete batches that reach ``start`` or beyond to byte ``position`` and on; returns where the next ones go."""
    at = 0
    while at + _HEADER <= len(records):
        base, length = _FRAME.unpack_from(records, at)
        following = at + _FRAME.size + length
        if following > len(records):
            break  # cut off: the next request begins with it
        (delta,) = _LAST_DELTA.unpack_from(records, at + _LAST_DELTA_AT)
        if base + delta >= start:
            segment.seek(position)
            segment.write(records[at : min(at + _KEPT, following)])
            position += following - at
            start = base + delta + 1
        at = following
    return start, position


def _fetched(broker: Connection, topic: str, partition: int, offset: int) -> tuple[int, bytes]:
    """The high watermark, and record batches from that offset on; the last may be cut off."""
    body = b"".join(
        (
            # No replica; how long to wait; bytes at least and at most; read_uncommitted.
            struct.pack(">iiiib", -1, _WAIT_MS, 1, _AT_ONCE, 0),
            _INT32.pack(1) + string(topic),
            _INT32.pack(1) + struct.pack(">iqi", partition, offset, _AT_ONCE),
        )
    )
    answer = broker.ask(_FETCH, _VERSION, body)
    if answer is None:
        raise ServiceFailed(f"{topic}/{partition}: the broker closed the connection instead of answering a Fetch")
    try:
        return _read(answer, topic, partition)
    except Undecodable as wrong:
        raise ServiceFailed(f"{topic}/{partition}: the broker's answer to a Fetch cannot be read: {wrong}") from wrong


def _read(answer: Cursor, topic: str, partition: int) -> tuple[int, bytes]:
    answer.take(_INT32.size)  # throttle time
    if answer.number(_INT32) != 1 or answer.text(compact=False) != topic or answer.number(_INT32) != 1:
        raise ServiceFailed(f"{topic}/{partition}: the broker answered a Fetch for something else")
    answer.take(_INT32.size)  # the partition
    error, high = answer.number(_INT16), answer.number(_INT64)
    if error:
        raise ServiceFailed(f"{topic}/{partition}: the broker refused a Fetch with error {error}")
    answer.take(_INT64.size)  # the last stable offset
    for _ in range(max(answer.number(_INT32), 0)):  # aborted transactions
        answer.take(2 * _INT64.size)
    return high, answer.take(max(answer.number(_INT32), 0))
