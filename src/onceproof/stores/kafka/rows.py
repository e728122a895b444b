"""Turns records read from Kafka into rows of the history, with what the partition's log adds to each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from confluent_kafka import Message

from onceproof.base.errors import HistoryError
from onceproof.history.schema import TABLES
from onceproof.stores.kafka.partition_log import Batch, Marker, PartitionLog

# As `onceproof.values.canonical.key_text` writes a byte of a key.
_ESCAPED_BYTE = re.compile(r"\\x[0-9A-F]{2}")

COMMITTED, ABORTED, OPEN = "committed", "aborted", "open"

#: The columns from a log, in the order of `LogColumns.of`.
_FROM_LOG = ("producer_id", "producer_epoch", "sequence", "txn_end_offset", "txn_end_ms")


class LogColumns:
    """Columns that the log of a partition adds to its records. Records must be passed in offset order."""

    def __init__(self, log: PartitionLog | None, where: str, update: Callable[[], object] | None = None) -> None:
        """``update`` brings the files of the log up to date, if they are copies."""
        self._log = log
        self._where = where
        self._update = update

    def of(self, messages: list[Message], seen: list[str]) -> dict[str, list[int | None]]:
        """Column -> values; empty if there is no log.

        Raises `HistoryError` if the log contradicts what readers got.
        """
        if self._log is None:
            return {}
        rows: list[tuple[int | None, ...]] = []
        batch: Batch | None = None
        end: Marker | None = None
        for message, visibility in zip(messages, seen, strict=True):
            offset = offset_of(message)
            if batch is None or offset > batch.last_offset:
                batch = self._log.batch_of(offset)
                if batch is None:
                    raise HistoryError(f"{self._where}@{offset} was read, but the leader's log does not hold it")
                end = self._log.end_of(batch)
            if visibility != OPEN:
                end = self._agreed(batch, end, offset, visibility)
            rows.append(
                (
                    batch.producer_id,
                    batch.producer_epoch,
                    batch.sequence(offset),
                    None if end is None else end.offset,
                    None if end is None else end.at_ms,
                )
            )
        return {name: list(values) for name, values in zip(_FROM_LOG, zip(*rows, strict=True), strict=True)}

    def _agreed(self, batch: Batch, end: Marker | None, offset: int, visibility: str) -> Marker | None:
        assert self._log is not None
        if batch.transactional and end is None:
            if self._update is not None:
                self._update()
            self._log.look_again()  # the transaction ended while it was being read
            end = self._log.end_of(batch)
        in_log = _visibility(batch, end)
        if in_log != visibility:
            marker = "" if end is None else f" (its marker is at offset {end.offset})"
            raise HistoryError(
                f"{self._where}@{offset} is {visibility} to readers, but {in_log} in the leader's log{marker}",
                hint="they were read one after the other, so a client may still have been writing: run the scenario again",
            )
        return end


def _visibility(batch: Batch, end: Marker | None) -> str:
    if not batch.transactional:
        return COMMITTED
    return OPEN if end is None else COMMITTED if end.commit else ABORTED


def input_batch(topic: str, partition: int, messages: list[Message], seen: list[str], **more: Any) -> pa.RecordBatch:
    """Rows of table ``input``; ``more`` are the columns of `LogColumns`."""
    return _batch(
        "input",
        len(messages),
        topic=[topic] * len(messages),
        partition=[partition] * len(messages),
        offset=[m.offset() for m in messages],
        key=[m.key() for m in messages],
        value=[m.value() for m in messages],
        timestamp_ms=[m.timestamp()[1] for m in messages],
        visibility=seen,
        headers=[headers_text(m) for m in messages],
        **more,
    )


def output_batch(name: str, partition: int, messages: list[Message], seen: list[str], **more: Any) -> pa.RecordBatch:
    """Rows of table ``output`` for the output ``name``."""
    content, raw = zip(*(as_text(m.value()) for m in messages), strict=True)
    return _batch(
        "output",
        len(messages),
        output=[name] * len(messages),
        op=["insert"] * len(messages),
        partition=[partition] * len(messages),
        offset=[m.offset() for m in messages],
        key=[m.key() for m in messages],
        content=content,
        raw=raw,
        visibility=seen,
        timestamp_ms=[m.timestamp()[1] for m in messages],
        headers=[headers_text(m) for m in messages],
        **more,
    )


def headers_text(message: Message) -> str | None:
    """A record's headers in the form of column ``headers``, or None."""
    found = message.headers()
    if not found:
        return None
    given: list[tuple[str, bytes | str | None]] = list(found)  # type: ignore[arg-type]  # a dict occurs only when sending
    pairs = [[name, None if value is None else _readable(value)] for name, value in given]
    return json.dumps(pairs, ensure_ascii=False, separators=(",", ":"))


def _readable(value: bytes | str) -> str:
    if isinstance(value, str):
        value = value.encode("utf-8")
    try:
        text: str | None = value.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    if text is None or _ESCAPED_BYTE.search(text):  # else \xFF in four characters would be equal to the byte
        return "".join(chr(byte) if 0x20 <= byte < 0x7F and byte != 0x5C else f"\\x{byte:02X}" for byte in value)
    return text


def offset_of(message: Message) -> int:
    offset = message.offset()
    assert offset is not None, "a record that was read has an offset"
    return offset


def as_text(value: bytes | None) -> tuple[str | None, bytes | None]:
    """The value as text and None, or None and the bytes if they are not UTF-8."""
    if value is None:
        return None, None
    try:
        return value.decode("utf-8"), None
    except UnicodeDecodeError:
        return None, value


def _batch(table: str, count: int, **columns: Any) -> pa.RecordBatch:
    """A record batch with these columns; all others are null."""
    schema = TABLES[table]
    arrays = [pa.array(columns.get(f.name, [None] * count), f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
