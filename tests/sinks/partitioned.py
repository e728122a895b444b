"""The Kafka sink that writes from tasks: its target, and the checks for it alone. A task is a call of what the sink pickles for tasks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from .bench import LONGEST_S, Bench, HeldRows, KafkaTarget, Recipe
from .conftest import METADATA, FakeCheckpoint

Ends = dict[str, int]
"""Partition -> where a batch ends in it."""


class PartitionedTarget(KafkaTarget):
    progress_partitions = 3

    def recipe(self, checkpoint: FakeCheckpoint, **settings: Any) -> Recipe:
        own = super().recipe(checkpoint, **{"source": ["src_partition", "src_offset"], **settings})
        return replace(own, module="tasks.kafka", kind="KafkaPartitioned")

    def rows(self, checkpoint: FakeCheckpoint, batch: int) -> Any:
        rows = placed(checkpoint.rows(batch), 0)
        return rows if self._hold is None else HeldAfterTheFirst(rows, self._hold)


class HeldAfterTheFirst(HeldRows):
    """The first row shows which source partition a task has: only then does the sink begin a transaction."""

    def to_batches(self, **how: Any) -> Any:
        yield from self._rows.slice(0, 1).to_batches()
        self._hold.waiting.set()
        self._hold.go.wait(LONGEST_S)
        yield from self._rows.slice(1).to_batches(**how)


def placed(rows: pa.Table, partition: int) -> pa.Table:
    return rows.append_column("src_partition", pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows))


def rows_of(*places: tuple[int, int]) -> pa.Table:
    """A row for each (partition, offset), in this order. As ``src_offset`` a reader sees 100 times the partition and the offset."""
    partitions, offsets = zip(*places, strict=True) if places else ((), ())
    return pa.table(
        {
            "key": pa.array([f"k{partition}" for partition in partitions], pa.string()),
            "src_partition": pa.array(partitions, pa.int32()),
            "at": pa.array(offsets, pa.int64()),
            "src_offset": pa.array([100 * p + o for p, o in zip(partitions, offsets, strict=True)], pa.int64()),
        }
    )


def checkpoint_of(bench: Bench, *batches: Ends, start: Ends | None = None, topic: str = "t") -> FakeCheckpoint:
    """A checkpoint of a query that reads several partitions."""
    made = bench.checkpoint(*([0] * len(batches)))
    for number, ends in enumerate(batches):
        (made.folder / "offsets" / str(number)).write_text(f"v1\n{METADATA}\n{json.dumps({topic: ends})}")
    starts = start or dict.fromkeys(batches[0], 0)
    (made.folder / "sources" / "0" / "0").write_bytes(b"\x00v1\n" + json.dumps({topic: starts}).encode())
    return made


def sink_of(bench: Bench, checkpoint: FakeCheckpoint, **settings: Any) -> Any:
    return bench.target.recipe(checkpoint, **{"source": ["src_partition", "at"], **settings}).make()


def task(sink: Any, batch: int, rows: pa.Table) -> list[Any]:
    """What one attempt at a task reports: the driver may never get it."""
    return list(sink._lanes.write(rows.to_batches(), sink._batch(batch)))


def first(partition: int, *offsets: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in offsets]


ZERO, ONE = first(0, *range(5)), first(1, *range(3))


def attempt_again(bench: Bench) -> None:
    """A task has committed, and its result is lost with the executor."""
    sink = sink_of(bench, checkpoint_of(bench, {"0": 5}))
    rows = rows_of(*ZERO)
    assert [(one.rows, one.skipped) for one in task(sink, 0, rows)] == [(5, False)]
    assert [(one.rows, one.skipped) for one in task(sink, 0, rows)] == [(5, True)]
    bench.shows(*range(5))


def driver_dies_between_tasks(bench: Bench) -> None:
    """One of two source partitions is committed. A reader sees it, and the replay writes only the other one."""
    checkpoint = checkpoint_of(bench, {"0": 5, "1": 3}, {"0": 6, "1": 4})
    task(sink_of(bench, checkpoint), 0, rows_of(*ONE))
    bench.shows(100, 101, 102)
    sink = sink_of(bench, checkpoint)
    assert sink.write(rows_of(*ZERO, *ONE), 0)
    assert not sink.write(rows_of(*ZERO, *ONE), 0)
    assert sink.write(rows_of((0, 5), (1, 3)), 1)
    assert sorted(bench.target.offsets()) == [*range(6), *range(100, 104)]


def one_source_partition_in_two_tasks(bench: Bench) -> None:
    """The second task must not find its rows written, even with as many rows, and the same sum of offsets."""
    sink = sink_of(bench, checkpoint_of(bench, {"0": 4}))
    task(sink, 0, rows_of(*first(0, 0, 3)))
    bench.refused("tasks.lanes:RowsDiffer", lambda: bool(task(sink, 0, rows_of(*first(0, 1, 2)))))
    bench.refused("tasks.lanes:RowsDiffer", lambda: sink.write(rows_of(*first(0, 0, 1, 2, 3)), 0))
    bench.shows(0, 3)


def older_batch(bench: Bench) -> None:
    """Progress is that of a later batch, whose rows are others."""
    checkpoint = checkpoint_of(bench, {"0": 5}, {"0": 8})
    sink = sink_of(bench, checkpoint)
    assert sink.write(rows_of(*first(0, *range(5))), 0)
    assert sink.write(rows_of(*first(0, 5, 6, 7)), 1)
    assert not sink.write(rows_of(*first(0, *range(5))), 0)
    bench.shows(*range(8))


def lost_checkpoint_with_smaller_batches(bench: Bench) -> None:
    """Its batches end where recorded progress ends, and batch 0 has fewer rows than the one of that number had."""
    assert sink_of(bench, checkpoint_of(bench, {"0": 8})).write(rows_of(*first(0, *range(8))), 0)
    lost = checkpoint_of(bench, {"0": 2}, {"0": 7}, {"0": 8}, {"0": 9})
    (lost.folder / "metadata").write_text('{"id":"22222222-0000-0000-0000-000000000000"}')
    again = sink_of(bench, lost)
    for batch, (start, end) in enumerate(((0, 2), (2, 7), (7, 8))):
        assert not again.write(rows_of(*first(0, *range(start, end))), batch)
    assert again.write(rows_of((0, 8)), 3)
    bench.shows(*range(9))


def rows_in_another_order(bench: Bench) -> None:
    """A shuffle may change the order at each attempt: they are the same rows."""
    sink = sink_of(bench, checkpoint_of(bench, {"0": 4}))
    task(sink, 0, rows_of(*first(0, 0, 1, 2, 3)))
    assert [one.skipped for one in task(sink, 0, rows_of(*first(0, 2, 0, 3, 1)))] == [True]
    bench.shows(*range(4))


def several_source_partitions_in_one_task(bench: Bench) -> None:
    """Their rows alternate, within and between the Arrow batches of the task."""
    sink = sink_of(bench, checkpoint_of(bench, {"0": 4, "1": 4, "2": 4}))
    places = [(partition, offset) for offset in range(4) for partition in (1, 0, 2)]
    batches = [batch for at in (0, 5, 10) for batch in rows_of(*places[at : at + 5]).to_batches()]
    found = list(sink._lanes.write(iter(batches), sink._batch(0)))
    assert [(one.partition, one.rows, one.skipped) for one in found] == [
        (partition, 4, False) for partition in ("1", "0", "2")
    ]
    written = bench.target.offsets()
    assert sorted(written) == sorted(100 * partition + offset for partition, offset in places)
    for lane in range(3):
        own = [each for each in written if each // 100 == lane]
        assert own == sorted(own), f"out of order: {own}"
    assert [one.skipped for one in sink._lanes.write(iter(batches), sink._batch(0))] == [True] * 3


def source_partition_without_rows(bench: Bench) -> None:
    """The query drops all rows of a source partition: its next batch is written nevertheless."""
    checkpoint = checkpoint_of(bench, {"0": 5, "1": 3}, {"0": 6, "1": 4})
    sink = sink_of(bench, checkpoint)
    assert sink.write(rows_of(*ZERO), 0)
    assert not sink.write(rows_of(*ZERO), 0)
    assert sink.write(rows_of((0, 5), (1, 3)), 1)
    bench.shows(*range(6), 103)


def source_partition_without_input_at_first(bench: Bench) -> None:
    sink = sink_of(bench, checkpoint_of(bench, {"0": 5, "1": 0}, {"0": 5, "1": 3}))
    assert sink.write(rows_of(*ZERO), 0)
    assert sink.write(rows_of(*ONE), 1)
    bench.shows(*range(5), 100, 101, 102)


def source_partition_is_added(bench: Bench) -> None:
    """With and without rows in its first batch."""
    checkpoint = checkpoint_of(bench, {"0": 5}, {"0": 5, "1": 3, "2": 0}, {"0": 5, "1": 3, "2": 2}, start={"0": 0})
    sink = sink_of(bench, checkpoint)
    assert sink.write(rows_of(*ZERO), 0)
    assert sink.write(rows_of(*ONE), 1)
    assert not sink.write(rows_of(*ONE), 1)
    assert sink.write(rows_of((2, 0), (2, 1)), 2)
    bench.shows(*range(5), 100, 101, 102, 200, 201)


def progress_of_one_source_partition_is_lost(bench: Bench) -> None:
    sink = sink_of(bench, checkpoint_of(bench, {"0": 5, "1": 3}, {"0": 6, "1": 4}))
    task(sink, 0, rows_of(*ZERO))
    bench.refused("OffsetGap", lambda: bool(task(sink, 1, rows_of((1, 3)))))
    bench.shows(*range(5))


def a_paused_source_partition_holds_back_no_other(bench: Bench) -> None:
    """One task waits before its commit, with an open transaction, as long as the other one reads its progress and writes."""
    sink = sink_of(bench, checkpoint_of(bench, {"0": 5, "1": 3}), transaction_timeout_s=10)
    ready, may_go = threading.Event(), threading.Event()

    def pause() -> None:
        ready.set()
        may_go.wait(LONGEST_S)

    paused = threading.Thread(target=lambda: task(sink, 0, rows_of(*ONE)), daemon=True)
    with bench.when(before_sink_commit=pause):
        paused.start()
        try:
            assert ready.wait(LONGEST_S)
            assert [one.skipped for one in task(sink, 0, rows_of(*ZERO))] == [False]
        finally:
            may_go.set()
            paused.join(LONGEST_S)
    assert sorted(bench.target.offsets()) == [*range(5), 100, 101, 102]


def rows_from_elsewhere(bench: Bench) -> None:
    """Columns that are not the place of a row in the batch's input, because of a join or a wrong name."""
    sink = sink_of(bench, checkpoint_of(bench, {"0": 5, "1": 3}))
    for wrong in (rows_of((0, 0), (0, 5)), rows_of((2, 0)), rows_of((1, 3))):
        bench.refused("SinkError", lambda wrong=wrong: sink.write(wrong, 0))
    without = rows_of(*ZERO).set_column(2, "at", pa.nulls(5, pa.int64()))
    bench.refused("SinkError", lambda: sink.write(without, 0))
    bench.refused("SinkError", lambda: sink.write(rows_of(*ZERO).drop_columns(["at"]), 0))
    bench.refused("SinkError", lambda: bool(sink_of(bench, checkpoint_of(bench, {"0": 5}), source=["at"])))
    bench.shows()


def several_topics(bench: Bench) -> None:
    """Rows must say which topic they come from. Two topics have a partition of the same number."""
    checkpoint = checkpoint_of(bench, {"0": 5})
    ends, start = json.dumps({"t": {"0": 2}, "u": {"0": 2}}), json.dumps({"t": {"0": 0}, "u": {"0": 0}})
    (checkpoint.folder / "offsets" / "0").write_text(f"v1\n{METADATA}\n{ends}")
    (checkpoint.folder / "sources" / "0" / "0").write_bytes(b"\x00v1\n" + start.encode())
    bench.refused("SinkError", lambda: sink_of(bench, checkpoint).write(rows_of((0, 0)), 0))
    rows = rows_of((0, 0), (0, 1), (0, 1)).append_column("topic", pa.array(["t", "t", "u"]))
    sink = sink_of(bench, checkpoint, source=["topic", "src_partition", "at"])
    assert sink.write(rows, 0)
    assert not sink.write(rows, 0)
    assert sorted(bench.target.offsets()) == [0, 1, 1]


def progress_topic_with_too_few_partitions(bench: Bench) -> None:
    target: Any = bench.target
    target.broker.create_topic(f"{target.topic}-small", 1)
    sink = sink_of(bench, checkpoint_of(bench, {"0": 5, "1": 3}), progress_topic=f"{target.topic}-small")
    try:
        task(sink, 0, rows_of(*ONE))
    except bench.error("kafka_progress:ProgressUnreadable") as error:
        assert "has 1 partitions" in str(error), error
    else:
        raise AssertionError("the progress is in no partition")
    assert task(sink, 0, rows_of(*ZERO))
    bench.shows(*range(5))


def query_with_state(bench: Bench) -> None:
    """Refused before its first row. Where its first batch makes the state, before the driver calls it finished."""
    known = bench.checkpoint(5, stateful=True)
    bench.refused("SinkError", lambda: bench.write(known, 0))
    bench.shows()
    checkpoint = bench.checkpoint(5)
    sink = bench.target.recipe(checkpoint).make()
    with bench.when(before_sink_commit=lambda: (checkpoint.folder / "state").mkdir()):
        bench.refused("SinkError", lambda: sink.write(bench.target.rows(checkpoint, 0), 0))


def rows_without_input(bench: Bench) -> None:
    """A batch without input has no rows, unless they come from state."""
    checkpoint = bench.checkpoint(5, 5)
    bench.write(checkpoint, 0)
    windows = bench.target.rows(bench.checkpoint(5, 7), 1)
    bench.refused("SinkError", lambda: bench.target.recipe(checkpoint).make().write(windows, 1))
    bench.shows(*range(5))


#: In place of the checks of a query with state.
WITHOUT_STATE: tuple[Callable[[Bench], None], ...] = (query_with_state, rows_without_input)

OF_TASKS: tuple[Callable[[Bench], None], ...] = (
    attempt_again,
    driver_dies_between_tasks,
    one_source_partition_in_two_tasks,
    older_batch,
    lost_checkpoint_with_smaller_batches,
    rows_in_another_order,
    several_source_partitions_in_one_task,
    source_partition_without_rows,
    source_partition_without_input_at_first,
    source_partition_is_added,
    progress_of_one_source_partition_is_lost,
    a_paused_source_partition_holds_back_no_other,
    rows_from_elsewhere,
    several_topics,
    progress_topic_with_too_few_partitions,
)
