"""The parser of Kafka's log files, on logs that are built byte by byte, cut off and corrupted."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from onceproof.base.errors import HistoryError
from onceproof.stores.kafka.partition_log import PartitionLog

ABORT, COMMIT, NEITHER = 0, 1, 5


def batch(
    base: int,
    count: int = 1,
    *,
    producer: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    attributes: int = 0,
    at_ms: int = 1_000,
    body: bytes = b"\x00" * 30,
) -> bytes:
    """A record batch of version 2 as in KIP-98, without a checksum, which the parser does not read."""
    rest = struct.pack(">hiqqqhii", attributes, count - 1, at_ms, at_ms, producer, epoch, sequence, count) + body
    return struct.pack(">qiibI", base, 9 + len(rest), 0, 2, 0) + rest


def marker(base: int, producer: int, kind: int, *, at_ms: int = 2_000) -> bytes:
    key, value = struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 7)
    record = bytes([0, 0, 0, 2 * len(key), *key, 2 * len(value), *value, 0])
    return batch(base, producer=producer, epoch=3, attributes=0x30, at_ms=at_ms, body=bytes([2 * len(record)]) + record)


def transactional(base: int, count: int, producer: int, sequence: int = 0) -> bytes:
    return batch(base, count, producer=producer, epoch=2, sequence=sequence, attributes=0x10)


def write(folder: Path, *segments: tuple[int, bytes]) -> Path:
    for base, content in segments:
        (folder / f"{base:020}.log").write_bytes(content)
    return folder


def ends(folder: Path, offsets: list[int]) -> list[tuple[int, bool] | None]:
    found: list[tuple[int, bool] | None] = []
    with PartitionLog.open(folder) as log:
        for offset in offsets:
            read = log.batch_of(offset)
            assert read is not None, offset
            end = log.end_of(read)
            found.append(None if end is None else (end.offset, end.commit))
    return found


def test_a_record_belongs_to_the_next_marker_of_its_producer(tmp_path: Path) -> None:
    content = [
        transactional(0, 2, 11),
        transactional(2, 1, 22),
        batch(3),
        marker(4, 11, COMMIT),
        transactional(5, 1, 11),
        marker(6, 22, ABORT),
        marker(7, 11, NEITHER),
        marker(8, 11, ABORT),
        transactional(9, 1, 22),
    ]
    write(tmp_path, (0, b"".join(content)))
    committed, aborted = (4, True), (8, False)
    assert ends(tmp_path, [0, 1, 2, 3, 5, 9]) == [committed, committed, (6, False), None, aborted, None]


def test_producer_epoch_sequence_and_time_are_read(tmp_path: Path) -> None:
    last = 2**31 - 2
    write(tmp_path, (0, transactional(0, 4, 11, sequence=last) + batch(4) + marker(5, 11, COMMIT, at_ms=77)))
    with PartitionLog.open(tmp_path) as log:
        read = log.batch_of(0)
        assert read is not None
        assert (read.producer_id, read.producer_epoch) == (11, 2)
        assert [read.sequence(offset) for offset in range(4)] == [last, last + 1, 0, 1]
        end = log.end_of(read)
        assert end is not None and end.at_ms == 77
        plain = log.batch_of(4)
        assert plain is not None
        assert (plain.producer_id, plain.producer_epoch, plain.sequence(4)) == (None, None, None)


def test_segments_and_holes_are_read_and_other_files_ignored(tmp_path: Path) -> None:
    write(tmp_path, (100, transactional(100, 2, 11)), (110, transactional(110, 1, 11) + marker(112, 11, COMMIT)))
    (tmp_path / "00000000000000000100.index").write_bytes(b"\x01" * 8)
    (tmp_path / "00000000000000000000.log.deleted").write_bytes(b"\x01" * 80)
    assert ends(tmp_path, [100, 101, 110]) == [(112, True)] * 3
    with PartitionLog.open(tmp_path) as log:
        assert log.batch_of(105) is None
    with PartitionLog.open(tmp_path) as log:
        assert log.batch_of(113) is None


def test_a_log_can_grow_while_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / f"{0:020}.log"
    file.write_bytes(transactional(0, 1, 11) + marker(1, 11, COMMIT)[:50])
    with PartitionLog.open(tmp_path) as log:
        read = log.batch_of(0)
        assert read is not None
        assert log.end_of(read) is None
        file.write_bytes(transactional(0, 1, 11) + marker(1, 11, COMMIT) + transactional(2, 1, 11))
        write(tmp_path, (3, marker(3, 11, ABORT)))
        log.look_again()
        log.look_again()
        assert log.end_of(read) == (1, True, 2_000)
        later = log.batch_of(2)
        assert later is not None
        assert log.end_of(later) == (3, False, 2_000)


def test_preallocated_space_is_the_end_of_the_log(tmp_path: Path) -> None:
    write(tmp_path, (0, transactional(0, 1, 11) + marker(1, 11, COMMIT) + b"\x00" * 500))
    assert ends(tmp_path, [0]) == [(1, True)]


def test_an_empty_folder_is_an_empty_log(tmp_path: Path) -> None:
    with PartitionLog.open(tmp_path) as log:
        assert log.batch_of(0) is None


def test_another_format_is_refused(tmp_path: Path) -> None:
    old = bytearray(batch(0))
    old[16] = 1
    write(tmp_path, (0, bytes(old)))
    with pytest.raises(HistoryError, match="at byte 0: a batch of format 1; only format 2 is known"):
        PartitionLog.open(tmp_path)


def test_decreasing_offsets_are_refused(tmp_path: Path) -> None:
    write(tmp_path, (0, batch(5, 3) + batch(6)))
    with pytest.raises(HistoryError, match=r"at byte 91: a batch of .* offsets 6 to 6, after offset 7"):
        PartitionLog.open(tmp_path)


def test_a_cut_off_file_before_another_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, (0, batch(0) + batch(1)[:40]), (2, batch(2)))
    with pytest.raises(HistoryError, match="ends in the middle of a batch, and another file follows"):
        PartitionLog.open(tmp_path)


def test_a_log_cut_at_any_byte_gives_the_complete_batches(tmp_path: Path) -> None:
    parts = [transactional(0, 2, 11), marker(2, 11, ABORT), batch(3, 2), transactional(5, 1, 11), marker(6, 11, COMMIT)]
    content, starts = b"".join(parts), [0, 2, 3, 5, 6]
    for length in range(len(content)):
        write(tmp_path, (0, content[:length]))
        whole = sum(len(b"".join(parts[: n + 1])) <= length for n in range(len(parts)))
        with PartitionLog.open(tmp_path) as log:
            found = [log.batch_of(start) is not None for start in starts]
        assert found == [n < whole for n in range(len(parts))], length


def test_corrupt_bytes_never_crash_or_hang(tmp_path: Path) -> None:
    parts = [transactional(0, 2, 11), marker(2, 11, ABORT), batch(3, 2), transactional(5, 1, 11), marker(6, 11, COMMIT)]
    content = b"".join(parts)
    dice = random.Random(7)
    refused = 0
    for _ in range(3_000):
        corrupt = bytearray(content)
        for _ in range(dice.choice((1, 1, 2, 8))):
            corrupt[dice.randrange(len(corrupt))] = dice.randrange(256)
        write(tmp_path, (0, bytes(corrupt)))
        try:
            with PartitionLog.open(tmp_path) as log:
                for offset in range(7):
                    if (read := log.batch_of(offset)) is not None:
                        log.end_of(read)
                        read.sequence(offset)
        except HistoryError:
            refused += 1
    assert 0 < refused < 3_000
