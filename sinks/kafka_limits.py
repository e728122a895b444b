"""Which records a topic takes, so that a sink can refuse the others before it sends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceproof.sinks.errors import RecordRefused
from onceproof.sinks.kafka_records import Record

#: Default of librdkafka's ``message.max.bytes``.
_MOST_BYTES = 1_000_000

#: Of a batch of records in message format 2, before the first record.
_BATCH_HEADER_BYTES = 61


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
