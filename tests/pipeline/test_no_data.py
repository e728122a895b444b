"""Which batches without input Spark is still going to plan, judged from checkpoint files that the tests write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onceproof.base.waiting import wait_until
from onceproof.instruments.checkpoint_watcher import Batch, CheckpointWatcher, parse_commit_log
from onceproof.pipeline.no_data import SLACK_S, Pending, pending

LONGEST_S = 60.0


class Written:
    """Writes a checkpoint file by file, at times that the test chooses, with a watcher on it."""

    def __init__(self, root: Path) -> None:
        self.now, self.start = 0.0, 0
        self.folder = root / "orders"
        self.watcher = CheckpointWatcher(
            root, clock=lambda: self.now, start_of_driver=lambda: self.start, on_log=lambda *_: None
        )
        self.watcher.start()

    def plan(self, batch: int, end: int, watermark: int, *, at: float, by: int = 0) -> None:
        self.now, self.start = at, by
        metadata = f'{{"batchWatermarkMs":{watermark},"batchTimestampMs":1,"conf":{{}}}}'
        self._put("offsets", batch, f'v1\n{metadata}\n{{"in":{{"0":{end}}}}}')
        wait_until("its plan", lambda: self.watcher.batch("orders", batch), deadline_s=5)

    def commit(self, batch: int, next_watermark: int, *, at: float, by: int = 0) -> None:
        self.now, self.start = at, by
        self._put("commits", batch, f'v1\n{{"nextBatchWatermarkMs":{next_watermark}}}')
        wait_until("its commit", lambda: self._batch(batch).committed_at is not None, deadline_s=5)

    def keep_state(self) -> None:
        (self.folder / "state" / "0" / "0").mkdir(parents=True)

    def pending(self, *, at: float, by: int = 0, ended: tuple[int, ...] = ()) -> Pending | None:
        stateful = self.watcher.stateful("orders")
        return pending(self.watcher.batches(), stateful=stateful, start=by, now=at, longest_s=LONGEST_S, ended=ended)

    def _batch(self, number: int) -> Batch:
        found = self.watcher.batch("orders", number)
        assert found is not None
        return found

    def _put(self, log: str, batch: int, text: str) -> None:
        (self.folder / log).mkdir(parents=True, exist_ok=True)
        draft = self.folder / log / f".{batch}.tmp"
        draft.write_text(text)
        draft.rename(self.folder / log / str(batch))


@pytest.fixture
def spark(tmp_path: Path, request: pytest.FixtureRequest) -> Written:
    one = Written(tmp_path / "checkpoint")
    request.addfinalizer(one.watcher.stop)
    return one


def fed(spark: Written, *, every: float = 2.0, moves: bool = True) -> None:
    """Batches 0 to 3, planned ``every`` seconds and committed at once; the watermark moves with each that has input."""
    for number in range(4):
        before = 1000 * max(number - 1, 0) * moves
        spark.plan(number, 10 * number, before, at=every * number)
        spark.commit(number, 1000 * number * moves, at=every * number + 0.5)


def test_a_planned_batch_without_input_is_pending_until_its_commit(spark: Written) -> None:
    spark.keep_state()
    fed(spark)
    spark.plan(4, 30, 3000, at=6.6)
    left = spark.pending(at=100)
    assert left is not None and (left.batch.batch, left.reason, left.waiting_helps) == (4, "open", True)
    spark.commit(4, 3000, at=7)
    assert spark.pending(at=7) is None, "batch 4 did not move the watermark, so it is the last one"


def test_a_moved_watermark_makes_the_next_batch_due_before_it_is_planned(spark: Written) -> None:
    spark.keep_state()
    fed(spark)
    left = spark.pending(at=6.6)
    assert left is not None and (left.batch.batch, left.reason) == (3, "due")
    assert left.describe() == (
        "batch 3 of query orders moved the watermark to 1970-01-01 00:00:03 UTC, "
        "and Spark has not yet planned the batch without input that acts on it"
    )


def test_a_query_without_state_has_nothing_pending(spark: Written) -> None:
    fed(spark)
    assert spark.pending(at=6.6) is None


def test_an_unmoved_watermark_leaves_nothing_pending(spark: Written) -> None:
    spark.keep_state()
    fed(spark, moves=False)
    assert spark.pending(at=6.6) is None


@pytest.mark.parametrize("every", [2.0, 30.0], ids=["trigger of 2 s at most", "trigger of 30 s at most"])
def test_the_batch_is_due_for_one_trigger_interval_and_no_longer(spark: Written, every: float) -> None:
    spark.keep_state()
    fed(spark, every=every)
    committed = 3 * every + 0.5
    # Between its batches the query was idle for nearly `every` seconds, and planned no batch without input.
    for at in (committed + 0.1, committed + every + SLACK_S - 0.1):
        left = spark.pending(at=at)
        assert left is not None and left.reason == "due", at
    left = spark.pending(at=committed + every + SLACK_S + 0.1)
    assert left is not None and (left.reason, left.waiting_helps) == ("none", False)
    assert f"planned no batch without input for it within {every + SLACK_S:.1f} s" in left.describe()
    assert "spark.sql.streaming.noDataMicroBatches.enabled is false" in left.describe()


def test_a_query_that_was_idle_long_enough_before_has_no_batch_due(spark: Written) -> None:
    spark.keep_state()
    fed(spark)
    spark.plan(4, 40, 3000, at=20)  # 13.5 s after the watermark had moved, and with input
    spark.commit(4, 4000, at=20.5)
    left = spark.pending(at=20.6)
    assert left is not None and left.reason == "none"


def test_with_an_unknown_trigger_the_batch_is_due_until_the_query_counts_as_stuck(spark: Written) -> None:
    spark.keep_state()
    spark.plan(0, 0, 0, at=0)
    spark.commit(0, 0, at=0.1)
    spark.plan(1, 10, 0, at=1)  # the first batch of a driver does not wait for a trigger, so this gap does not count
    spark.commit(1, 1000, at=1.5)
    reasons = [(left := spark.pending(at=at)) and left.reason for at in (LONGEST_S, 1.5 + LONGEST_S + SLACK_S)]
    assert reasons == ["due", "none"]


def test_after_one_batch_without_input_the_next_is_due_for_longer(spark: Written) -> None:
    spark.keep_state()
    fed(spark)
    spark.plan(4, 30, 3000, at=6.6)
    spark.commit(4, 3000, at=6.7)
    spark.plan(5, 40, 3000, at=8)
    spark.commit(5, 4000, at=8.5)
    reasons = [(left := spark.pending(at=at)) and left.reason for at in (8.6, 60, 8.5 + LONGEST_S)]
    assert reasons == ["due", "due", "none"]


def test_after_a_restart_the_batch_comes_only_with_input(spark: Written) -> None:
    spark.keep_state()
    fed(spark)
    left = spark.pending(at=6.6, by=1)
    assert left is not None and (left.reason, left.waiting_helps) == ("restarted", False)
    assert "the driver was restarted before Spark planned a batch without input" in left.describe()


def test_a_job_that_ended_by_itself_has_no_batch_due(spark: Written) -> None:
    """Trigger.Once runs exactly one batch; the next start has nothing to do."""
    spark.keep_state()
    fed(spark)
    left = spark.pending(at=6.6, by=1, ended=(0,))
    assert left is not None and (left.reason, left.waiting_helps) == ("none", False)
    assert "planned no batch without input for it before the job ended by itself" in left.describe()


def test_after_a_batch_that_the_new_driver_replayed_the_next_is_due(spark: Written) -> None:
    spark.keep_state()
    fed(spark)
    spark.plan(4, 40, 3000, at=8)
    spark.commit(4, 4000, at=20, by=1)
    left = spark.pending(at=20.1, by=1)
    assert left is not None and left.reason == "due"


def test_batches_of_processing_time_timers_are_not_pending(spark: Written) -> None:
    spark.keep_state()
    fed(spark)
    spark.plan(4, 30, 3000, at=6.6)
    spark.commit(4, 3000, at=6.7)
    spark.plan(5, 30, 3000, at=6.8)
    assert spark.pending(at=6.9) is None


@pytest.mark.parametrize(
    ("text", "watermark"),
    [
        ('v1\n{"nextBatchWatermarkMs":5}', 5),
        ('v2\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{}}', 7),
        ("v1\n{}", None),
        ("v1", None),
    ],
)
def test_the_watermark_of_the_next_batch_is_read_from_the_commit_log(text: str, watermark: int | None) -> None:
    assert parse_commit_log(text) == watermark


@pytest.mark.parametrize("text", ["", "{}"])
def test_a_text_that_is_not_a_commit_log_is_refused(text: str) -> None:
    check: Callable[[], int | None] = lambda: parse_commit_log(text)  # noqa: E731
    with pytest.raises(ValueError, match="a commit log begins with its version"):
        check()
