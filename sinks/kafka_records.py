"""Turns rows into records of a Kafka topic: a key of bytes, and a JSON object; and knows which of them a topic takes."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from .errors import RecordRefused, SinkError

Record = tuple[bytes | None, bytes]
"""Key and value."""

Addressed = tuple[str, bytes | None, bytes]
"""Topic, key and value."""

#: Default of librdkafka's ``message.max.bytes``.
_MOST_BYTES = 1_000_000

#: Of a batch of records in message format 2, before the first record.
_BATCH_HEADER_BYTES = 61


class RecordFormat:
    """Makes the record of a row. The column ``key`` is its key, the columns ``value`` (None: all) are its value.

    A key of bytes stays as it is, anything else becomes UTF-8 text, NULL stays NULL. Without ``key`` all keys are NULL.
    """

    def __init__(self, topic: str, key: str | None, value: Sequence[str] | None) -> None:
        self._topic = topic
        self._key = key
        self._value = value

    def demand_names(self, names: Sequence[str]) -> None:
        """Raise `SinkError` if two columns of a batch have one name: a row as a dict would hold only the second of them."""
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SinkError(
                f"the batch has several columns {twice[0]!r}, and a JSON object has a name once",
                hint="rename or drop one of them, as after a join",
            )

    def __call__(self, row: dict[str, Any]) -> Record:
        """Raises `SinkError` for a missing column, `RecordRefused` for a value that JSON lacks."""
        try:
            key = row[self._key] if self._key is not None else None
            value = row if self._value is None else {name: row[name] for name in self._value}
        except KeyError as missing:
            raise SinkError(
                f"the batch has no column {missing.args[0]!r}, but {', '.join(row)}",
                hint="name columns of the batch as key and value of the sink",
            ) from None
        if key is not None and not isinstance(key, bytes):
            key = str(key).encode()
        try:
            return key, _json(value)
        except (TypeError, ValueError):
            raise self._not_json(value) from None

    def _not_json(self, row: dict[str, Any]) -> RecordRefused:
        """The error for the first column that cannot be written."""
        name = next(name for name, value in row.items() if not _has_json(value))
        return RecordRefused(
            f"column {name!r} of topic {self._topic!r} holds {reprlib.repr(row[name])}, which has no form in JSON",
            hint="replace NaN, infinity and bytes in the query (nanvl, when, base64), or cast the column to string",
        )


@dataclass(frozen=True)
class RecordLimits:
    """What the producer and, where that is known, the topic take. Sizes are those before compression."""

    topic: str
    producer_bytes: int
    """librdkafka's ``message.max.bytes``: the most bytes of a key and its value."""
    topic_bytes: int | None = None
    """``max.message.bytes`` of the topic: the most bytes of a batch of records. A record may be alone in its batch."""
    needs_key: bool = False
    """Whether the topic is compacted, so that it refuses a record without a key."""

    @classmethod
    def of_producer(cls, topic: str, settings: Mapping[str, Any]) -> RecordLimits:
        """``settings`` are those of librdkafka."""
        return cls(topic, int(settings.get("message.max.bytes", _MOST_BYTES)))

    def fitting(self, record: Record) -> Record:
        """``record``, if the producer and the topic take it. Raises `RecordRefused`."""
        key, value = record
        size = len(key or b"") + len(value)
        if size > self.producer_bytes:
            raise RecordRefused(
                f"a record of {size:,} bytes for topic {self.topic!r} is larger than message.max.bytes ({self.producer_bytes:,})",
                hint="raise message.max.bytes in the sink's config and max.message.bytes of the topic, or write fewer columns",
            )
        if self.topic_bytes is not None and (size := bytes_alone(record)) > self.topic_bytes:
            raise RecordRefused(
                f"a record of {size:,} bytes is larger than max.message.bytes of topic {self.topic!r} ({self.topic_bytes:,})",
                hint="raise max.message.bytes of the topic, or write fewer columns",
            )
        if key is None and self.needs_key:
            raise RecordRefused(
                f"the record has no key, and topic {self.topic!r} is compacted (cleanup.policy)",
                hint="the key column must not be NULL",
            )
        return record

    def room(self, record: Record) -> int:
        """How many bytes the value may become longer; negative if the record is too large already."""
        most = self.producer_bytes - len(record[0] or b"") - len(record[1])
        if self.topic_bytes is None:
            return most
        # Two lengths are written in at most four bytes more if the value becomes longer.
        return min(most, self.topic_bytes - bytes_alone(record) - 8)


def bytes_alone(record: Record) -> int:
    """The size of a batch that holds only this record, without compression, as the broker compares it."""
    key, value = record
    # Its attributes, the differences of its time and its offset from those of the batch, and the number of headers: a byte each.
    size = 4 + _bytes_of_length(-1 if key is None else len(key)) + len(key or b"")
    size += _bytes_of_length(len(value)) + len(value)
    return _BATCH_HEADER_BYTES + _bytes_of_length(size) + size


def _bytes_of_length(length: int) -> int:
    """Of a length as a zigzag varint: seven bits in each byte."""
    zigzag = 2 * length if length >= 0 else -2 * length - 1
    return max(1, -(-zigzag.bit_length() // 7))


def readable(value: Any) -> Any:
    """The value in JSON: what JSON lacks is text."""
    if isinstance(value, Mapping):
        return {str(name): readable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [readable(each) for each in value]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=_plain, allow_nan=False).encode()


def _has_json(value: Any) -> bool:
    try:
        _json(value)
    except (TypeError, ValueError):
        return False
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
