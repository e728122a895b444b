"""The checkpoint watcher, on a real folder that the tests write as Spark's CheckpointFileManager does."""

from __future__ import annotations

import json
import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.waiting import wait_until
from onceproof.instruments.checkpoint_watcher import (
    CheckpointWatcher,
    parse_initial_offsets,
    parse_offset_log,
)
from onceproof.scenario.points import Point

OFFSETS = 'v1\n{"batchWatermarkMs":7,"batchTimestampMs":1,"conf":{}}\n{"flights":{"0":%d,"1":5}}'


class Spark:
    """Writes a checkpoint as Spark does: temporary file, then rename."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, log: str, batch: int, text: str) -> Path:
        (self.folder / log).mkdir(parents=True, exist_ok=True)
        draft = self.folder / log / f".{batch}.{uuid.uuid4()}.tmp"
        draft.write_text(text)
        return draft

    def write(self, log: str, batch: int, text: str = "v1\n{}") -> None:
        self.begin(log, batch, text).rename(self.folder / log / str(batch))


class Seen:
    def __init__(self) -> None:
        self.logs: list[tuple[str, int, Point]] = []

    def __call__(self, query: str, batch: int, point: Point) -> None:
        self.logs.append((query, batch, point))

    def wait_for(self, *wanted: tuple[str, int, Point]) -> None:
        wait_until(f"{wanted}", lambda: set(wanted) <= set(self.logs), deadline_s=5, explain=lambda: str(self.logs))


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def start_of_driver() -> list[int]:
    return [0]


@pytest.fixture
def watcher(tmp_path: Path, seen: Seen, start_of_driver: list[int]) -> Iterator[CheckpointWatcher]:
    one = CheckpointWatcher(
        tmp_path / "checkpoint", clock=lambda: 1.5, start_of_driver=lambda: start_of_driver[0], on_log=seen
    )
    one.start()
    yield one
    one.stop()


@pytest.mark.parametrize("text", ["123", "", "{}\n{}", "v1\n{not json"])
def test_a_foreign_offsets_folder_is_named(watcher: CheckpointWatcher, text: str) -> None:
    Spark(watcher.root / "mine").write("offsets", 0, text)

    def check() -> bool:
        watcher.check()
        return False

    with pytest.raises(
        EnvironmentProblem, match=r"mine/offsets/0 is not an offset log of Spark(?s:.*)only Spark may write"
    ):
        wait_until("the failure", check, deadline_s=5)


@pytest.mark.parametrize(
    "ends", ['{"t":{"a":1}}', '{"t":{"0":null}}', '{"0":{"value":3,"runTimeMs":7}}', '{"t":{"0":1.5}}']
)
def test_offsets_that_are_no_integers_are_not_kafkas(ends: str) -> None:
    assert parse_offset_log(f"v1\n{{}}\n{ends}").ends == {}


def test_points_are_reported_in_the_order_of_the_log_writes(watcher: CheckpointWatcher, seen: Seen) -> None:
    spark = Spark(watcher.root)
    spark.write("offsets", 0, OFFSETS % 10)
    draft = spark.begin("commits", 0, "v1\n{}")
    seen.wait_for(("checkpoint", 0, Point.AFTER_SINK_COMMIT))
    assert not watcher.log_exists("checkpoint", "commits", 0)
    draft.rename(watcher.root / "commits" / "0")
    seen.wait_for(("checkpoint", 0, Point.AFTER_COMMIT_LOG))
    assert [point for _, _, point in seen.logs] == [
        Point.AFTER_OFFSET_LOG,
        Point.AFTER_SINK_COMMIT,
        Point.AFTER_COMMIT_LOG,
    ]


def test_checksum_and_leftover_files_are_not_log_writes(watcher: CheckpointWatcher, seen: Seen) -> None:
    spark = Spark(watcher.root)
    spark.write("offsets", 0, OFFSETS % 10)
    for name in (f"..0.{uuid.uuid4()}.tmp.crc", ".0.crc", "0.compact", f".0.{uuid.uuid4()}.temp"):
        (watcher.root / "offsets" / name).write_text("x")
    spark.write("offsets", 1, OFFSETS % 20)
    seen.wait_for(("checkpoint", 1, Point.AFTER_OFFSET_LOG))
    assert len(seen.logs) == 2


def test_a_batch_starts_where_the_previous_batch_ended(watcher: CheckpointWatcher, seen: Seen) -> None:
    spark = Spark(watcher.root)
    spark.write("offsets", 0, OFFSETS % 10)
    spark.write("offsets", 1, OFFSETS % 25)
    seen.wait_for(("checkpoint", 1, Point.AFTER_OFFSET_LOG))
    wait_until("both", lambda: len(watcher.batches()) == 2, deadline_s=5)
    first, second = watcher.batches()
    assert first.starts == {} and first.ends == {"flights": {0: 10, 1: 5}} and first.watermark_ms == 7
    assert second.starts == first.ends and second.records() == 15


def test_a_batch_after_one_without_a_log_entry_starts_where_the_log_ended(
    watcher: CheckpointWatcher, seen: Seen
) -> None:
    """Asynchronous progress tracking writes no entry for a batch that ends soon after the one before it."""
    spark = Spark(watcher.root)
    for batch, end in ((0, 10), (1, 20), (3, 40)):
        spark.write("offsets", batch, OFFSETS % end)
    seen.wait_for(("checkpoint", 3, Point.AFTER_OFFSET_LOG))
    last = wait_until("batch 3", lambda: watcher.batch("checkpoint", 3), deadline_s=5)
    assert last.starts == {"flights": {0: 20, 1: 5}}


def test_an_offset_log_that_goes_back_covers_no_records_in_that_partition(watcher: CheckpointWatcher) -> None:
    spark = Spark(watcher.root)
    spark.write("offsets", 0, OFFSETS % 10)
    spark.write("offsets", 1, 'v1\n{}\n{"flights":{"0":2,"1":9}}')
    last = wait_until("batch 1", lambda: watcher.batch("checkpoint", 1), deadline_s=5)
    assert last.records() == 4


def test_a_replay_is_a_batch_planned_by_one_driver_and_committed_by_the_next(
    watcher: CheckpointWatcher, seen: Seen, start_of_driver: list[int]
) -> None:
    spark = Spark(watcher.root)
    spark.write("offsets", 0, OFFSETS % 10)
    seen.wait_for(("checkpoint", 0, Point.AFTER_OFFSET_LOG))
    wait_until("planned", lambda: watcher.batch("checkpoint", 0), deadline_s=5)
    start_of_driver[0] = 1
    spark.write("commits", 0)
    # The watcher calls on_log before it records the commit.
    wait_until("committed", lambda: watcher.covers({"flights": {0: 10}}), deadline_s=5)
    batch = watcher.batch("checkpoint", 0)
    assert batch is not None and (batch.planned_by, batch.committed_by) == (0, 1)


def test_a_temporary_file_found_twice_is_reported_once(watcher: CheckpointWatcher, seen: Seen) -> None:
    """A file made between the watch on its folder and the reading of the folder is found by both."""
    spark = Spark(watcher.root)
    spark.write("offsets", 0, OFFSETS % 10)
    draft = spark.begin("commits", 0, "v1\n{}")
    seen.wait_for(("checkpoint", 0, Point.AFTER_SINK_COMMIT))
    watcher._see(draft.parent, draft.name)
    assert [point for _, _, point in seen.logs].count(Point.AFTER_SINK_COMMIT) == 1
    spark.begin("commits", 0, "v1\n{}")  # the replay's, by another driver
    wait_until("the replay's", lambda: len(seen.logs) == 3, deadline_s=5, explain=lambda: str(seen.logs))


def test_a_removed_checkpoint_starts_again_at_batch_0(watcher: CheckpointWatcher, seen: Seen) -> None:
    spark = Spark(watcher.root)
    for number in range(2):
        spark.write("offsets", number, OFFSETS % (10 * number))
        spark.write("commits", number)
    wait_until("both", lambda: watcher.covers({"flights": {0: 10}}), deadline_s=5)
    for entry in watcher.root.iterdir():
        shutil.rmtree(entry)
    wait_until("it to be forgotten", lambda: not watcher.batches(), deadline_s=5)
    assert not watcher.covers({"flights": {0: 10}})
    Spark(watcher.root).write("offsets", 0, OFFSETS % 20)
    wait_until("its new batch 0", lambda: watcher.batches(), deadline_s=5)
    assert [b.ends["flights"][0] for b in watcher.batches()] == [20]
    old = watcher.batch("checkpoint", 1)
    assert old is not None and old.ends["flights"][0] == 10, "the batch that a fault struck is still known"


def test_covers_needs_every_query_that_reads_the_topic(watcher: CheckpointWatcher, seen: Seen) -> None:
    assert not watcher.covers({"flights": {0: 0}})  # no query reads it yet
    for name in ("a", "b"):
        spark = Spark(watcher.root / name)
        spark.write("offsets", 0, OFFSETS % 10)
    Spark(watcher.root / "a").write("commits", 0)
    seen.wait_for(("a", 0, Point.AFTER_COMMIT_LOG), ("b", 0, Point.AFTER_OFFSET_LOG))
    wait_until("b", lambda: watcher.batch("b", 0), deadline_s=5)
    assert not watcher.covers({"flights": {0: 10}})
    Spark(watcher.root / "b").write("commits", 0)
    # The watcher calls on_log before it records the commit.
    wait_until("both commits", lambda: watcher.covers({"flights": {0: 10}}), deadline_s=5)
    assert not watcher.covers({"flights": {0: 11}})


def test_covers_waits_for_an_expected_query_that_starts_late(tmp_path: Path, seen: Seen) -> None:
    late = CheckpointWatcher(
        tmp_path, clock=lambda: 0.0, start_of_driver=lambda: 0, on_log=seen, expected=["first", "second"]
    )
    late.start()
    try:
        for name in ("first", "second"):
            assert not late.covers({"flights": {0: 10}}), f"covered before {name} had started"
            assert late.missing_queries()[0] == name
            Spark(late.root / name).write("offsets", 0, OFFSETS % 10)
            Spark(late.root / name).write("commits", 0)
            seen.wait_for((name, 0, Point.AFTER_COMMIT_LOG))
        wait_until("the commits", lambda: late.covers({"flights": {0: 10}}), deadline_s=5)
        assert late.missing_queries() == []
    finally:
        late.stop()


def test_a_checkpoint_that_existed_before_the_watch_is_not_missed(tmp_path: Path, seen: Seen) -> None:
    Spark(tmp_path / "checkpoint").write("offsets", 0, OFFSETS % 10)
    watcher = CheckpointWatcher(tmp_path / "checkpoint", clock=lambda: 0.0, start_of_driver=lambda: 0, on_log=seen)
    watcher.start()
    try:
        seen.wait_for(("checkpoint", 0, Point.AFTER_OFFSET_LOG))
    finally:
        watcher.stop()


def test_what_is_queued_when_the_watcher_is_stopped_is_recorded_and_strikes_nothing(tmp_path: Path) -> None:
    """Its thread may be delayed until then; the job's last log entries belong to the history all the same."""
    logs: list[tuple[str, int, Point]] = []
    entered, released = threading.Event(), threading.Event()

    def on_log(query: str, batch: int, point: Point) -> None:
        logs.append((query, batch, point))
        entered.set()
        released.wait(10)

    spark = Spark(tmp_path / "checkpoint" / "q")
    (spark.folder / "offsets").mkdir(parents=True)
    watcher = CheckpointWatcher(tmp_path / "checkpoint", clock=lambda: 1.5, start_of_driver=lambda: 0, on_log=on_log)
    watcher.start()
    spark.write("offsets", 0, OFFSETS % 10)
    assert entered.wait(10)
    spark.write("offsets", 1, OFFSETS % 20)
    spark.write("commits", 0)
    assert watcher.newest_plan("q") == 1 and not watcher.batches()
    os.write(watcher._wake_write, b"x")
    released.set()
    watcher.stop()
    assert [(b.batch, b.committed_at) for b in watcher.batches()] == [(0, 1.5), (1, None)]
    assert logs == [("q", 0, Point.AFTER_OFFSET_LOG)]
    watcher.check()


def test_query_of_id_reads_the_metadata(watcher: CheckpointWatcher, seen: Seen) -> None:
    spark = Spark(watcher.root / "to-postgres")
    spark.write("offsets", 0, OFFSETS % 10)
    (watcher.root / "to-postgres" / "metadata").write_text(json.dumps({"id": "abc"}))
    seen.wait_for(("to-postgres", 0, Point.AFTER_OFFSET_LOG))
    assert watcher.query_of_id("abc") == "to-postgres"
    assert watcher.query_of_id("xyz") is None


def test_check_raises_what_stopped_the_watcher(tmp_path: Path) -> None:
    def fail(query: str, batch: int, point: Point) -> None:
        raise ZeroDivisionError

    watcher = CheckpointWatcher(tmp_path / "checkpoint", clock=lambda: 0.0, start_of_driver=lambda: 0, on_log=fail)
    watcher.start()
    Spark(watcher.root).write("offsets", 0, OFFSETS % 10)

    def died() -> bool:
        try:
            watcher.check()
        except ZeroDivisionError:
            return True
        return False

    wait_until("the failure", died, deadline_s=5)
    watcher.stop()


@pytest.mark.parametrize("text", ["", "hello\nworld", "{}"])
def test_a_text_that_is_not_an_offset_log_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_offset_log(text)


def test_sources_other_than_kafka_are_skipped() -> None:
    log = parse_offset_log('v1\n{"batchWatermarkMs":0}\n-\n{"logOffset":3}\n12\n{"t":{"0":1}}')
    assert log.ends == {"t": {0: 1}}


def test_initial_offsets_are_read_after_a_leading_nul_byte() -> None:
    assert parse_initial_offsets('\0v1\n{"t":{"0":3}}') == {"t": {0: 3}}
