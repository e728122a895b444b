"""The outbox sink: its two outputs, which share one sink, and the checks for it alone."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from onceproof.stack.embedded import EmbeddedStack

from .bench import LONGEST_S, Bench, PostgresTarget, Recipe, Sink, offsets_in, read_committed
from .conftest import FakeCheckpoint


class OutboxTarget(PostgresTarget):
    """The table of an outbox sink. What its topic shows is never ahead of the table."""

    module, kind = "postgres_outbox", "PostgresOutbox"
    publishes = True

    def __init__(self, stack: EmbeddedStack, package: str = "onceproof.sinks") -> None:
        super().__init__(stack, package)
        self.broker = stack.kafka
        for topic in (self.name, f"{self.name}-progress"):
            self.broker.create_topic(topic, 1)

    def recipe(self, checkpoint: FakeCheckpoint, **settings: Any) -> Recipe:
        topic = {"transaction_timeout_s": 15, "commit_timeout_s": 0.7, "commit_attempts": 2}
        own = {
            "progress_topic": f"{self.name}-progress",
            "key": "key",
            "outbox_table": f"{self.name}_outbox",
            "topic_settings": {**topic, **settings.pop("topic_settings", {})},
        }
        made = super().recipe(checkpoint, **{**own, **settings})
        return replace(made, args=[*made.args, self.broker.client_bootstrap, self.name])

    def offsets(self) -> list[int]:
        published, rows = self.published(), super().offsets()
        assert published == rows[: len(published)], f"the topic shows {published}, the table {rows}"
        return rows

    def published(self) -> list[int]:
        return offsets_in(self.broker, self.name)

    def entries(self) -> list[int]:
        """The positions in the outbox."""
        exists = self.ask("SELECT to_regclass(%s)", f"{self.name}_outbox")[0][0]
        found = self.ask(f"SELECT position FROM {self.name}_outbox ORDER BY position") if exists else []
        return [position for (position,) in found]


class PublishingTarget(OutboxTarget):
    """The topic of an outbox sink: the checks strike when it publishes, and a batch counts as written if it was published."""

    service = "kafka"
    publishes = False  # to publish is what it commits

    def recipe(self, checkpoint: FakeCheckpoint, **settings: Any) -> Recipe:
        # The checks give the settings of a commit.
        topic = {name: settings.pop(name) for name in ("commit_attempts",) if name in settings}
        made = super().recipe(checkpoint, topic_settings=topic, **settings)
        return PublishingRecipe(**made.__dict__)

    def offsets(self) -> list[int]:
        super().offsets()
        return self.published()

    def lose(self, stream: Any) -> None:
        self.broker.client_proxy(1).add_toxic("timeout", stream, timeout=0)

    def heal(self) -> None:
        self.broker.client_proxy(1).heal()

    def refuse(self) -> None:
        self.broker.alter_topic(self.name, {"max.message.bytes": "60"})


class PublishingRecipe(Recipe):
    def make(self) -> Sink:
        return Publishing(super().make())


class Publishing:
    """An outbox sink that returns whether it has published something."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def write(self, rows: pa.Table, batch_id: int) -> bool:
        counts: list[int] = []
        publish = self._sink.publish
        self._sink.publish = lambda batch: counts.append(publish(batch))
        try:
            self._sink.write(rows, batch_id)
        finally:
            self._sink.publish = publish
        return any(counts)


def lost_entries(bench: Bench) -> None:
    """Somebody deleted entries that were not published: not the rest is published, and the next batch is not written."""
    checkpoint = bench.checkpoint(5, 8)
    target: Any = bench.target
    bench.die(checkpoint, 0, "after-sink-commit")
    for which in ("position = 2", "position = 4", "true"):
        target.ask(f"DELETE FROM {target.name}_outbox WHERE {which}")
        bench.refused("OffsetGap", lambda: bench.write(checkpoint, 1))
        assert target.published() == []
    bench.shows(*range(5))


def lost_end_of_the_outbox(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5, 8)
    target: Any = bench.target
    bench.die(checkpoint, 0, "after-sink-commit")
    target.ask(f"UPDATE {target.name}_outbox_end SET position = 3")
    bench.refused("OffsetGap", lambda: bench.write(checkpoint, 0))
    assert target.published() == []


def nothing_is_left_in_the_outbox(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5, 8)
    target: Any = bench.target
    bench.die(checkpoint, 0, "after-sink-commit", "kafka")
    assert target.entries() == [*range(5)]
    for batch in (0, 1):
        bench.write(checkpoint, batch)
        assert target.entries() == []
    assert target.published() == [*range(8)]


def restored_database(bench: Bench) -> None:
    """Postgres is restored from a backup that is older than the topic, and the query begins with another checkpoint."""
    checkpoint = bench.checkpoint(5, 8)
    target: Any = bench.target
    bench.write(checkpoint, 0)
    (offsets, query), *_ = target.ask(f"SELECT offsets::text, query_id FROM {target.name}_progress")
    bench.write(checkpoint, 1)
    target.ask(f"DELETE FROM {target.name} WHERE src_offset >= 5")
    target.ask(f"UPDATE {target.name}_progress SET batch_id = 0, query_id = %s, offsets = %s::jsonb", query, offsets)
    target.ask(f"UPDATE {target.name}_outbox_end SET position = 5")
    bench.refused("OffsetGap", lambda: bench.write(bench.checkpoint(5, 9), 1))
    assert target.ask(f"SELECT count(*) FROM {target.name}")[0][0] == 5
    assert target.published() == [*range(8)]


def lost_position(bench: Bench) -> None:
    """The progress topic is gone: nothing shows which entries were published."""
    checkpoint = bench.checkpoint(5, 8)
    target: Any = bench.target
    bench.write(checkpoint, 0)
    target.broker.create_topic(f"{target.name}-empty", 1)
    bench.refused("OffsetGap", lambda: bench.write(checkpoint, 1, progress_topic=f"{target.name}-empty"))
    bench.shows(*range(5))


def shared_outbox(bench: Bench) -> None:
    """Two pipelines share the outbox; the entries of one are left by a crash while the other publishes."""
    checkpoint, other = bench.checkpoint(5), bench.checkpoint(3)
    target: Any = bench.target
    pipelines = target.pipeline, f"{target.pipeline}-other"
    target.pipeline = pipelines[1]
    bench.die(checkpoint, 0, "after-sink-commit")
    target.pipeline = pipelines[0]
    assert bench.write(other, 0)
    assert target.published() == [*range(3)]
    target.pipeline = pipelines[1]
    assert not bench.write(checkpoint, 0)
    assert target.published() == [*range(3), *range(5)]
    assert target.entries() == []


def late_cleanup(bench: Bench) -> None:
    """Between publishing and deleting, a successor writes the next batch and dies."""
    checkpoint = bench.checkpoint(5, 8)
    target: Any = bench.target
    sink = target.recipe(checkpoint).make()
    with bench.when("kafka", after_sink_commit=lambda: bench.die(checkpoint, 1, "after-sink-commit", "postgres")):
        assert sink.write(target.rows(checkpoint, 0), 0)
    assert target.entries() == [5, 6, 7]
    assert not bench.write(checkpoint, 1)
    assert target.published() == [*range(8)]


def many_entries(bench: Bench) -> None:
    checkpoint = bench.checkpoint(3000)
    target: Any = bench.target
    assert bench.write(checkpoint, 0)
    assert target.published() == [*range(3000)]


def asynchronous_commit(bench: Bench) -> None:
    """Postgres may lose a batch that it has committed: the topic would show rows that the table never had."""
    checkpoint = bench.checkpoint(5)
    recipe = bench.target.recipe(checkpoint)
    uri = f"{recipe.args[0]}?options=-c%20synchronous_commit%3Doff"
    rows = bench.target.rows(checkpoint, 0)
    bench.refused("SinkError", lambda: replace(recipe, args=[uri, *recipe.args[1:]]).make().write(rows, 0))


def record_that_is_too_large(bench: Bench) -> None:
    """Nothing is written: once its row is committed, a record that cannot be published would stop the pipeline for ever."""
    checkpoint = bench.checkpoint(1)
    target: Any = bench.target
    rows = target.rows(checkpoint, 0).set_column(0, "key", pa.array(["x" * 600]))
    sink = target.recipe(checkpoint, topic_settings={"config": {"message.max.bytes": 1000}}).make()
    bench.refused("SinkError", lambda: sink.write(rows, 0))
    bench.shows()
    assert bench.target.recipe(checkpoint).make().write(rows, 0)


def progress_of_another_sink(bench: Bench) -> None:
    """The pipeline's name was that of a `KafkaTransactional`."""
    checkpoint = bench.checkpoint(5)
    target: Any = bench.target
    kafka = importlib.import_module(f"{target.package}.kafka").KafkaTransactional
    own = {"pipeline": target.pipeline, "progress_topic": f"{target.name}-progress", "checkpoint": checkpoint.folder}
    assert kafka(target.broker.client_bootstrap, target.name, **own).write(target.rows(checkpoint, 0), 0)
    bench.refused("OffsetGap", lambda: bench.write(checkpoint, 0))
    assert target.ask(f"SELECT count(*) FROM {target.name}")[0][0] == 0


def records_as_the_kafka_sink_writes_them(bench: Bench) -> None:
    checkpoint = bench.checkpoint(3)
    target: Any = bench.target
    rows = pa.table(
        {"key": [b"\xff\x00", None, b""], "src_offset": [0, 1, 2], "text": ['"\\n', "\u00e9\U0001f600", None]}
    )
    target.ask(f"ALTER TABLE {target.name} DROP key, ADD key bytea, ADD text text")
    form: dict[str, Any] = {"key": "key", "value": ["src_offset", "text"]}
    assert target.recipe(checkpoint, **form).make().write(rows, 0)
    other = f"{target.name}-other"
    target.broker.create_topic(other, 1)
    kafka = importlib.import_module(f"{target.package}.kafka").KafkaTransactional
    own = {"pipeline": other, "progress_topic": f"{target.name}-progress", "checkpoint": checkpoint.folder}
    assert kafka(target.broker.client_bootstrap, other, **form, **own).write(rows, 0)
    records = read_committed(target.broker, target.name)
    assert len(records) == 3
    assert records == read_committed(target.broker, other)


def two_publishers_in_the_middle(bench: Bench) -> None:
    """Two drivers find the entries of a dead one, and are in the middle of publishing them at once."""
    checkpoint = bench.checkpoint(5)
    target: Any = bench.target
    bench.die(checkpoint, 0, "after-sink-commit", "postgres")
    ends: list[bool | None] = []

    def drive() -> None:
        try:
            ends.append(bench.write(checkpoint, 0))
        except Exception:
            ends.append(None)

    drivers = [threading.Thread(target=drive, daemon=True) for _ in range(2)]
    with target.locked(f"{target.name}_outbox"):
        for driver in drivers:
            driver.start()
            driver.join(2.0)
    for driver in drivers:
        driver.join(LONGEST_S)
    assert ends.count(True) == 1, f"the results are {ends}"
    bench.shows(*range(5))


def commit_after_the_position_is_read(bench: Bench) -> None:
    """The predecessor's commit is sent after its successor has read the position, and before it publishes."""
    checkpoint = bench.checkpoint(5)
    reader = importlib.import_module(f"{bench.target.package}.kafka_progress").ProgressReader
    read = reader.last
    with bench.paused(checkpoint, 0) as resume:

        def last(self: Any) -> Any:
            found = read(self)
            resume()
            return found

        reader.last = last
        try:
            bench.write(checkpoint, 0)
        finally:
            reader.last = read
    bench.shows(*range(5))


CHECKS: dict[str, tuple[Callable[[Bench], None], ...]] = {
    "outbox": (
        lost_entries,
        lost_end_of_the_outbox,
        nothing_is_left_in_the_outbox,
        restored_database,
        lost_position,
        shared_outbox,
        late_cleanup,
        many_entries,
        asynchronous_commit,
        record_that_is_too_large,
        progress_of_another_sink,
        records_as_the_kafka_sink_writes_them,
    ),
    "outbox-publishing": (two_publishers_in_the_middle, commit_after_the_position_is_read),
}
