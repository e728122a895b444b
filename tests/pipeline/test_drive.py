"""How the feed ends: jobs that make no progress, and batches without input that are still pending."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.base.errors import EnvironmentProblem, WaitTimeout
from onceproof.instruments.checkpoint_watcher import Batch
from onceproof.pipeline.drive import FeedLoop, _GaveUp
from onceproof.pipeline.supervisor import Failure


def batch(query: str, number: int, ends: dict[str, dict[int, int]], committed_at: float | None = 2.0) -> Batch:
    return Batch(query, number, {}, ends, None, 1.0, 0, committed_at, None if committed_at is None else 0)


def drive(batches: Iterable[Batch], *, queries: Iterable[str] = ("q",), missing: Iterable[str] = ()) -> Any:
    watcher = SimpleNamespace(
        batches=lambda: list(batches),
        queries=lambda: dict.fromkeys(queries, Path()),
        missing_queries=lambda: list(missing),
        newest_plan=lambda _query: -1,
    )
    driven: Any = FeedLoop(None, None, None, watcher, None, None, {})  # type: ignore[arg-type]  # the tests set what else they need
    driven._ends = {"orders": {0: 5}}
    return driven


def test_a_topic_that_no_query_reads_is_named_with_the_topics_that_are_read() -> None:
    sentence = drive([batch("q", 0, {"other": {0: 0}})])._describe_unread_topics()
    assert sentence == "the job never reads topic orders: query q reads other (is its topic given as {topic.orders}?)"


@pytest.mark.parametrize(
    "driven",
    [
        drive([batch("q", 0, {"orders": {0: 0}})]),
        drive([batch("q", 0, {"other": {0: 0}})], queries=("q", "late")),
        drive([batch("q", 0, {"other": {0: 0}})], missing=("late",)),
    ],
    ids=["a query reads it", "a query has planned no batch yet", "an expected query has not started"],
)
def test_a_topic_that_a_query_may_still_read_is_not_named(driven: Any) -> None:
    assert driven._describe_unread_topics() is None


def test_a_job_whose_logs_may_be_behind_its_output_is_not_restarted() -> None:
    driven = drive([batch("q", 3, {"orders": {0: 4}})])
    driven._modes["q"] = "async"
    driven._watcher.has_started = lambda: True
    driven._stack = SimpleNamespace(spark=None)
    driven._faults = SimpleNamespace(quiet=True)
    driven._scenario = SimpleNamespace(limits=SimpleNamespace(stuck_s=60.0))
    driven._pending = list
    driven._last_progress = (0.0, driven._progress())
    with pytest.raises(_GaveUp, match="no progress is logged for 60 s: query q uses asynchronous progress tracking"):
        driven._check_progress(61.0)


@pytest.mark.parametrize(
    ("mode", "planned_by", "covered"), [("continuous", 0, False), ("continuous", 1, True), (None, 0, True)]
)
def test_a_repeated_epoch_does_not_show_that_its_rows_are_written(
    mode: str | None, planned_by: int, covered: bool
) -> None:
    driven = drive([replace(batch("q", 3, {"orders": {0: 5}}), planned_by=planned_by, committed_by=1)])
    driven._watcher.covers = lambda ends: ends == {"orders": {0: 5}}
    driven._modes.update({"q": mode} if mode else {})
    assert driven._covered() is covered


def test_a_batch_that_never_ended_is_named() -> None:
    open_ = batch("q", 4, {"orders": {0: 5}}, committed_at=None)
    assert (
        drive([batch("q", 3, {"orders": {0: 4}}), open_])._describe_open_batches() == ": batch 4 of query q never ended"
    )
    assert drive([batch("q", 3, {"orders": {0: 4}})])._describe_open_batches() == ""


def test_a_job_that_cannot_be_stopped_is_a_problem_of_the_environment() -> None:
    @contextmanager
    def frozen() -> Iterator[None]:
        raise WaitTimeout("gave up after 5.0 s waiting for every thread of driver-1 to be stopped")
        yield

    driven: Any = drive([])
    driven._scenario = SimpleNamespace(input=[SimpleNamespace(topic="orders", chunks=1)])
    driven._job = SimpleNamespace(frozen=frozen)
    feeder = SimpleNamespace(chunk=lambda _index: (0, 5))
    with pytest.raises(EnvironmentProblem, match=r"could not be stopped while chunk 0 is sent: .* driver-1"):
        driven._send(0, [feeder])


def test_a_job_is_restarted_after_each_hang_and_stuck_if_a_restart_brings_no_progress() -> None:
    batches = [batch("q", 0, {"orders": {0: 1}})]
    driven = drive([])
    driven._watcher.batches = lambda: batches
    driven._watcher.has_started = lambda: True
    driven._scenario = SimpleNamespace(limits=SimpleNamespace(stuck_s=30))
    driven._faults = SimpleNamespace(quiet=True, any_fired=True)
    driven._watcher.stateful = lambda _query: False
    driven._timeline = SimpleNamespace(emit=lambda *_, **__: None, now=lambda: 0.0)
    driven._stack = SimpleNamespace(spark=None)
    kills: list[int] = []
    driven._job = SimpleNamespace(kill_driver=lambda: kills.append(len(batches)), current_start=0, exits=[])

    def silence(begins: float) -> None:
        driven._check_progress(begins)
        driven._check_progress(begins + 31)

    silence(100)
    batches.append(batch("q", 1, {"orders": {0: 2}}))  # it made progress, and hangs again
    silence(200)
    assert kills == [1, 2]
    with pytest.raises(_GaveUp, match="and none after a restart") as stuck:
        driven._check_progress(262)
    assert stuck.value.stuck and kills == [1, 2]


def test_a_job_without_executors_is_never_stuck_even_after_a_fault() -> None:
    said = ["WARN TaskSchedulerImpl: Initial job has not accepted any resources; check your cluster UI"]
    driven = drive([batch("q", 0, {"orders": {0: 1}})])
    driven._watcher.has_started = lambda: True
    driven._scenario = SimpleNamespace(limits=SimpleNamespace(stuck_s=30))
    driven._faults = SimpleNamespace(quiet=True, any_fired=True)
    driven._watcher.stateful = lambda _query: False
    driven._timeline = SimpleNamespace(emit=lambda *_, **__: None, now=lambda: 0.0)
    driven._stack = SimpleNamespace(spark=object())
    driven._job = SimpleNamespace(
        kill_driver=lambda: None,
        current_start=0,
        exits=[],
        log_contains=lambda words, lines: any(words in line for line in said[-lines:]),
    )
    driven._check_progress(100)
    with pytest.raises(_GaveUp, match="the Spark cluster gave the job no executor within 30 s") as without:
        driven._check_progress(131)
    assert not without.value.stuck
    said += ["the job got executors, and printed other lines since"] * 20
    driven._check_progress(140)
    with pytest.raises(_GaveUp, match="and none after a restart") as stuck:
        driven._check_progress(180)
        driven._check_progress(220)
    assert stuck.value.stuck


def joined(*batches: Batch, at: float, start: int = 0) -> Any:
    """A feed loop at the time ``at``, with a stateful query that has committed all of its input."""
    driven = drive(batches)
    driven._watcher.covers = lambda _ends: True
    driven._watcher.stateful = lambda _query: True
    driven._faults = SimpleNamespace(quiet=True, feeds=True, active=[])
    driven._scenario = SimpleNamespace(limits=SimpleNamespace(stuck_s=60.0))
    driven._job = SimpleNamespace(current_start=start, exits=[])
    driven._timeline = SimpleNamespace(now=lambda: at, emit=lambda *_, **__: None)
    return driven


def with_input(number: int, at: float, *, moves: bool = True) -> Batch:
    """A batch with five records that takes half a second."""
    starts, ends = {"orders": {0: 5 * number}}, {"orders": {0: 5 * number + 5}}
    before, after = 1000 * number, 1000 * (number + moves)
    return Batch("q", number, starts, ends, before, at, 0, at + 0.5, 0, after)


def without_input(number: int, at: float, *, committed: bool = True) -> Batch:
    """The batch that follows a moved watermark."""
    ends = {"orders": {0: 5 * number}}
    done = (at + 0.2, 0, 1000 * number) if committed else (None, None, None)
    return Batch("q", number, ends, ends, 1000 * number, at, 0, *done)


def test_the_run_waits_until_the_batch_without_input_is_committed() -> None:
    fed = [with_input(0, 0.0), with_input(1, 1.0), with_input(2, 2.0)]
    assert not joined(*fed, at=2.6)._committed(), "Spark is about to plan it"
    assert not joined(*fed, without_input(3, 2.7, committed=False), at=2.8)._committed()
    assert joined(*fed, without_input(3, 2.7), at=3.0)._committed()


def test_the_next_chunk_waits_for_the_batch_without_input_unless_the_trigger_is_slow() -> None:
    first = joined(with_input(0, 0.0), at=0.6)
    assert not first._ready_for_more()
    assert joined(with_input(0, 0.0), without_input(1, 0.7), at=1.0)._ready_for_more()
    first._timeline.now = lambda: 3.0
    assert first._ready_for_more(), "the trigger is slow: the query's next batch takes the chunk"


def test_a_run_without_the_batch_without_input_drains_and_notes_its_absence() -> None:
    ended = joined(with_input(0, 0.0), with_input(1, 1.0), with_input(2, 2.0), at=60.0)
    assert ended._committed()
    ended._finish()
    assert ended._drained and ended._note is None
    assert "planned no batch without input for it within 2.5 s" in ended._open_watermarks["q"]["note"]


@pytest.mark.parametrize("start", [0, 1], ids=["none came in time", "the driver was restarted"])
def test_a_plan_that_the_watcher_has_not_read_yet_is_waited_for(start: int) -> None:
    """Its thread may be delayed: then the batch is planned, although `batches` does not show it."""
    ended = joined(with_input(0, 0.0), with_input(1, 1.0), with_input(2, 2.0), at=60.0, start=start)
    ended._watcher.newest_plan = lambda _query: 3
    assert not ended._committed() and not ended._ready_for_more()
    assert "a batch after batch 2 of query q is planned, and its plan is not read yet" in ended._pending()[0].describe()
    ended._watcher.newest_plan = lambda _query: 2
    assert ended._committed() and ended._ready_for_more()


def test_a_run_whose_driver_was_restarted_before_that_batch_did_not_drain() -> None:
    ended = joined(with_input(0, 0.0), with_input(1, 1.0), with_input(2, 2.0), at=2.6, start=1)
    assert ended._committed()
    ended._finish()
    assert not ended._drained
    assert "the driver was restarted before Spark planned a batch without input" in ended._note
    assert ended._open_watermarks["q"]["reason"] == "restarted"


def test_a_run_that_ends_early_notes_the_batch_that_was_due() -> None:
    ended = joined(with_input(0, 0.0), with_input(1, 1.0), with_input(2, 2.0), at=2.6)
    ended._stack = SimpleNamespace(kafka=SimpleNamespace(client_bootstrap="127.0.0.1:1"), postgres=None)
    ended._job.log_end, ended._job.why_it_failed = (
        lambda: "",
        lambda _addresses: Failure([], None, "logs/driver-0.log"),
    )
    ended._record_failure()
    assert ended._open_watermarks["q"]["reason"] == "due"
    late = joined(with_input(0, 0.0), with_input(1, 1.0), with_input(2, 2.0), at=2.6)
    late._watcher.newest_plan = lambda _query: 3
    late._note_open_watermarks()
    assert late._open_watermarks["q"]["reason"] == "due", (
        "the batch that acts on it is planned, and will not be committed"
    )
    reading = joined(with_input(0, 0.0), replace(with_input(1, 1.0), committed_at=None), at=2.6)
    reading._note_open_watermarks()
    assert reading._open_watermarks == {}, "an open batch with input is not about the watermark"
