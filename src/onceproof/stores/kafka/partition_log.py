"""Reads from a partition's log files what consumers do not get: producers, sequences, and the markers that end transactions.

Source: the record batch format, version 2 (KIP-98). The header of a batch and a control batch are never compressed, so
only headers are read, one after the other. Memory is bounded by the number of markers: one per transaction and partition.

A log can be read while a running broker appends to it: an incomplete batch is treated as the end of the log.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from onceproof.base.errors import HistoryError

# baseOffset, batchLength, partitionLeaderEpoch, magic, crc, attributes, lastOffsetDelta, baseTimestamp, maxTimestamp,
# producerId, producerEpoch, baseSequence, recordCount
_HEADER = struct.Struct(">qiibIhiqqqhii")
#: ``batchLength`` counts the bytes after itself.
_BEFORE_LENGTH = 12
_FORMAT = 2
# A control batch is 78 bytes: one record whose key is a version and a type.
_READ = _HEADER.size + 32
#: A block holds many small batches; of a large batch, little more than the header is read.
_BLOCK = 1 << 16
_SEQUENCES = 1 << 31

_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_ABORT, _COMMIT = 0, 1
_NONE = -1


class Batch(NamedTuple):
    """The fields of a batch header that a history needs."""

    base_offset: int
    last_offset: int
    producer_id: int | None
    producer_epoch: int | None
    base_sequence: int | None
    transactional: bool

    def sequence(self, offset: int) -> int | None:
        """The sequence of the record at ``offset``. After the largest 32-bit number, sequences start again at 0."""
        if self.base_sequence is None:
            return None
        return (self.base_sequence + offset - self.base_offset) % _SEQUENCES


class Marker(NamedTuple):
    """The end of one producer's transaction in this partition."""

    offset: int
    commit: bool
    at_ms: int


@dataclass
class _Segment:
    path: Path
    file: int
    searched: int = 0
    """Its markers are known up to this byte."""


class PartitionLog:
    """The log of one partition, in a replica's folder. Made by `open`, and read once, forwards.

    Every method raises `HistoryError` for files that are not a log of this format.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._closing = ExitStack()
        # Kept open, so that segments which the cleaner replaces or retention removes can still be read.
        self._segments: list[_Segment] = []
        self._markers: dict[int, list[Marker]] = {}
        self._ahead: Iterator[Batch] = iter(())
        self._current: Batch | None = None

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open every segment and find all markers."""
        log = cls(folder)
        try:
            log.look_again()
        except BaseException:
            log.close()
            raise
        log._ahead = (batch for segment in log._segments for batch, _, _ in _batches(segment, 0))
        return log

    def look_again(self) -> None:
        """Find the markers that were written since the last call."""
        last = self._segments[-1].path.name if self._segments else ""
        for path in sorted(self._folder.glob("*.log")):  # named after their first offset, with leading zeros
            if path.name > last:
                self._segments.append(self._opened(path))
        for segment in self._segments:
            for batch, marker, end in _batches(segment, segment.searched):
                segment.searched = end
                if marker is not None and batch.producer_id is not None:
                    self._markers.setdefault(batch.producer_id, []).append(marker)
            if segment is not self._segments[-1] and segment.searched < os.fstat(segment.file).st_size:
                raise _damaged(segment, segment.searched, "it ends in the middle of a batch, and another file follows")

    def batch_of(self, offset: int) -> Batch | None:
        """The batch that holds ``offset``, or None. Offsets must not decrease from call to call."""
        while self._current is None or self._current.last_offset < offset:
            self._current = next(self._ahead, None)
            if self._current is None:
                return None
        return self._current if self._current.base_offset <= offset else None

    def end_of(self, batch: Batch) -> Marker | None:
        """The marker that ended the transaction of ``batch``: its producer's first marker after it.

        None while the transaction is open, and for a batch outside of transactions. Epochs are not compared: since KIP-890 a
        marker carries the next epoch after that of its transaction.
        """
        if not batch.transactional or batch.producer_id is None:
            return None
        markers = self._markers.get(batch.producer_id, [])
        place = bisect_right(markers, batch.last_offset, key=lambda marker: marker.offset)
        return markers[place] if place < len(markers) else None

    def close(self) -> None:
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self, path: Path) -> _Segment:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise HistoryError(f"Kafka's log file {path} cannot be read: {error.strerror}") from error
        self._closing.callback(os.close, file)
        return _Segment(path, file)


def _batches(segment: _Segment, position: int) -> Iterator[tuple[Batch, Marker | None, int]]:
    """Every complete batch from byte ``position`` on, its marker if it is a control batch, and the end of the batch."""
    last, size, data, begin = -1, 0, b"", 0
    while True:
        if position + _READ > begin + len(data):
            size, data, begin = os.fstat(segment.file).st_size, os.pread(segment.file, _BLOCK, position), position
        if position + _HEADER.size > begin + len(data):
            return
        base, length, _, magic, _, attributes, delta, _, latest_ms, producer, epoch, sequence, _ = _HEADER.unpack_from(
            data, position - begin
        )
        if length == 0 and magic == 0:
            return  # space that a broker preallocated (log.preallocate)
        if magic != _FORMAT:
            raise _damaged(segment, position, f"a batch of format {magic}; only format {_FORMAT} is known")
        if length < _HEADER.size - _BEFORE_LENGTH or delta < 0 or base <= last:
            raise _damaged(
                segment,
                position,
                f"a batch of {length} bytes with the offsets {base} to {base + delta}, after offset {last}",
            )
        end = position + _BEFORE_LENGTH + length
        if end > size:
            return  # still being written
        last = base + delta
        batch = Batch(
            base,
            last,
            None if producer == _NONE else producer,
            None if producer == _NONE else epoch,
            None if sequence == _NONE else sequence,
            bool(attributes & _TRANSACTIONAL),
        )
        commits = _commits(data[position - begin + _HEADER.size : end - begin]) if attributes & _CONTROL else None
        yield batch, None if commits is None else Marker(last, commits, latest_ms), end
        position = end


def _commits(record: bytes) -> bool | None:
    """Whether a control record commits a transaction; None if it does not end one.

    Five numbers of one byte each precede the key: length, attributes, the deltas of time and offset (0 in a single record),
    and the key's length. All but the attributes are zigzag varints.
    """
    if len(record) < 9 or record[4] >> 1 < 4:
        return None
    return {_ABORT: False, _COMMIT: True}.get(int.from_bytes(record[7:9]))


def _damaged(segment: _Segment, position: int, what: str) -> HistoryError:
    return HistoryError(f"{segment.path} is not a Kafka log of the known format: at byte {position}: {what}")
