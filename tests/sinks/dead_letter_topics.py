"""The Kafka sink with dead letters: a target to which every batch brings records that the topic does not take, and its checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from onceproof.stack.embedded import EmbeddedStack

from .bench import Bench, KafkaTarget, Recipe, read_committed
from .conftest import FakeCheckpoint

QUERY = "11111111-2222-3333-4444-555555555555"
#: ``max.message.bytes`` of the topic.
MOST_BYTES = 1000


class RefusingKafka(KafkaTarget):
    """Each row is followed by one with a negative number: with NaN, or too large for the topic. Both are written once, or neither is."""

    def __init__(self, stack: EmbeddedStack, package: str = "onceproof.sinks") -> None:
        super().__init__(stack, package)
        self.broker.alter_topic(self.topic, {"max.message.bytes": str(MOST_BYTES)})
        self.broker.create_topic(f"{self.topic}-dead", 1)

    def recipe(self, checkpoint: FakeCheckpoint, **settings: Any) -> Recipe:
        return super().recipe(checkpoint, **{"dead_letters": f"{self.topic}-dead", **settings})

    def rows(self, checkpoint: FakeCheckpoint, batch: int) -> Any:
        return self._held(pairs(checkpoint.rows(batch)))

    def offsets(self) -> list[int]:
        written, letters = super().offsets(), self.letters()
        refused = [-1 - letter["row_value"]["src_offset"] for letter in letters]
        assert refused == written, f"{written} are written, {refused} refused"
        return written

    def letters(self) -> list[dict[str, Any]]:
        return [json.loads(value) for _, value in read_committed(self.broker, f"{self.topic}-dead")]

    def refuse(self) -> None:
        # Not because of a record: all are older.
        self.broker.alter_topic(self.topic, {"message.timestamp.before.max.ms": "0"})


def pairs(rows: pa.Table) -> pa.Table:
    numbers = rows["src_offset"].to_pylist()
    both = [number for offset in numbers for number in (offset, -1 - offset)]
    return pa.table(
        {
            "key": pa.array([key for key in rows["key"].to_pylist() for _ in range(2)], pa.string()),
            "src_offset": pa.array(both, pa.int64()),
            "share": pa.array([float("nan") if number < 0 and number % 2 else 0.5 for number in both], pa.float64()),
            "note": pa.array(
                ["x" * MOST_BYTES if number < 0 and not number % 2 else "" for number in both], pa.string()
            ),
        }
    )


def letters_of_records_have_source_and_reason(bench: Bench) -> None:
    checkpoint = bench.checkpoint(5, 7)
    target: Any = bench.target
    sink = target.recipe(checkpoint).make()
    for batch in (0, 1):
        assert sink.write(target.rows(checkpoint, batch), batch)
    found = [letter for letter in target.letters() if letter["batch_id"] == 1]
    reasons = [letter.pop("reason") for letter in found]
    assert found == [
        {
            "pipeline": target.pipeline,
            "query_id": QUERY,
            "batch_id": 1,
            "source": {"t": {"0": [5, 7]}},
            "row_number": number,
            "row_value": {"key": key, "src_offset": offset, "share": share, "note": note},
            "truncated": False,
        }
        for number, key, offset, share, note in ((1, "k1", -6, 0.5, "x" * MOST_BYTES), (3, None, -7, "nan", ""))
    ]
    assert "larger than max.message.bytes" in reasons[0]
    assert "has no form in JSON" in reasons[1]
    assert {key for key, _ in read_committed(target.broker, f"{target.topic}-dead")} == {target.pipeline.encode()}


def largest_record_is_written(bench: Bench) -> None:
    """Up to the last byte, with lengths that are written in one byte, in two, and in three."""
    target: Any = bench.target
    for most, key in ((130, None), (1000, None), (1000, "k" * 70), (9000, "")):
        target.pipeline = f"{target.topic}-{most}-{key}"
        target.broker.alter_topic(target.topic, {"max.message.bytes": str(most)})
        sizes = range(most - len(key or "") - 100, most - len(key or "") - 60)
        checkpoint, form = bench.checkpoint(len(sizes)), {"value": ["note"]}
        rows = pa.table({"key": pa.array([key] * len(sizes), pa.string()), "note": ["x" * max(0, n) for n in sizes]})
        before = len(target.letters())
        assert target.recipe(checkpoint, **form).make().write(rows, 0)
        refused = [letter["row_number"] for letter in target.letters()[before:]]
        assert refused == [*range(len(sizes) - len(refused), len(sizes))]
        assert 0 < len(refused) < len(sizes)
        # The broker would have refused the smallest of them.
        target.pipeline = f"{target.pipeline}-other"
        without = target.recipe(bench.checkpoint(1), dead_letters=None, **form).make()
        smallest = rows.slice(refused[0], 1)
        bench.refused("SinkError", lambda without=without, smallest=smallest: without.write(smallest, 0))


def many_records_are_more_than_one_batch(bench: Bench) -> None:
    """The broker compares max.message.bytes with a batch of records, which the producer fills."""
    checkpoint = bench.checkpoint(500)
    target: Any = bench.target
    rows = pa.table({"key": ["k"] * 500, "src_offset": range(500)})
    assert target.recipe(checkpoint).make().write(rows, 0)
    assert KafkaTarget.offsets(target) == [*range(500)]
    assert target.letters() == []


def records_that_the_producer_does_not_take(bench: Bench) -> None:
    checkpoint = bench.checkpoint(3)
    target: Any = bench.target
    target.broker.alter_topic(target.topic, {"max.message.bytes": "100000"})
    rows = pa.table({"key": ["a", "b", "c"], "src_offset": [0, 1, 2], "note": ["", "x" * 1000, ""]})
    assert target.recipe(checkpoint, config={"message.max.bytes": 1000}).make().write(rows, 0)
    assert KafkaTarget.offsets(target) == [0, 2]
    (letter,) = target.letters()
    assert "larger than message.max.bytes" in letter["reason"]
    # The producer does not take the letter with the whole row either.
    assert letter["truncated"]
    assert letter["row_value"].startswith('{"key": "b", "src_offset": 1, "note": "xxx')


def records_without_a_key(bench: Bench) -> None:
    """A compacted topic refuses them."""
    checkpoint = bench.checkpoint(4)
    target: Any = bench.target
    target.broker.alter_topic(target.topic, {"cleanup.policy": "compact,delete"})
    rows = pa.table({"key": ["a", None, "", "b"], "src_offset": [0, 1, 2, 3]})
    assert target.recipe(checkpoint).make().write(rows, 0)
    assert KafkaTarget.offsets(target) == [0, 2, 3]
    (letter,) = target.letters()
    assert (letter["row_number"], letter["row_value"]) == (1, {"key": None, "src_offset": 1})
    assert "has no key" in letter["reason"]


def letters_that_are_too_large(bench: Bench) -> None:
    """They hold the beginning of their row, as much as fits also if each character of it is written as two."""
    target: Any = bench.target
    texts = ['"\\' * 2000, "x" * 4000, "\x00\u00e9" * 1000, "short"]
    for most in (700, 701, 733, 1000, 4100):
        target.pipeline = f"{target.topic}-{most}"
        target.broker.alter_topic(f"{target.topic}-dead", {"max.message.bytes": str(most)})
        checkpoint = bench.checkpoint(4)
        rows = pa.table({"key": ["k"] * 4, "src_offset": [0, 1, 2, 3], "note": texts, "share": [float("nan")] * 4})
        before = len(target.letters())
        assert target.recipe(checkpoint).make().write(rows, 0)
        letters = target.letters()[before:]
        assert [letter["row_number"] for letter in letters] == [0, 1, 2, 3]
        assert [letter["truncated"] for letter in letters] == [True, True, True, False]
        for letter, text in zip(letters[:3], texts, strict=False):
            whole = json.dumps({"key": "k", "src_offset": letter["row_number"], "note": text, "share": "nan"})
            assert whole.startswith(letter["row_value"])
            assert len(letter["row_value"]) > (most - 600) // 2


def letters_that_do_not_fit_at_all(bench: Bench) -> None:
    """Nothing is written: without its dead letter, the row would be lost."""
    checkpoint = bench.checkpoint(5)
    target: Any = bench.target
    target.broker.alter_topic(f"{target.topic}-dead", {"max.message.bytes": "200"})
    bench.refused("SinkError", lambda: bench.write(checkpoint, 0))
    bench.shows()
    target.broker.alter_topic(f"{target.topic}-dead", {"max.message.bytes": "2000"})
    assert bench.write(checkpoint, 0)
    bench.shows(*range(5))


def topic_that_would_lose_letters(bench: Bench) -> None:
    """It is compacted, or it does not exist: nothing is written, whether or not there is a dead letter."""
    checkpoint = bench.checkpoint(5)
    target: Any = bench.target
    rows = checkpoint.rows(0)
    sink = target.recipe(checkpoint).make()
    target.broker.alter_topic(f"{target.topic}-dead", {"cleanup.policy": "compact"})
    bench.refused("SinkError", lambda: sink.write(rows, 0))
    missing = target.recipe(checkpoint, dead_letters=f"{target.topic}-missing").make()
    bench.refused("SinkError", lambda: missing.write(rows, 0))
    bench.shows()
    for same in (target.topic, f"{target.topic}-progress"):
        try:
            target.recipe(checkpoint, dead_letters=same).make()
        except bench.error("SinkError"):
            continue
        raise AssertionError(f"{same} is accepted as the topic of dead letters")


def limits_that_change(bench: Bench) -> None:
    """An administrator changes max.message.bytes between two batches of a running query."""
    checkpoint = bench.checkpoint(2, 4, 6)
    target: Any = bench.target
    sink = target.recipe(checkpoint).make()
    note = ["x" * 500, ""]
    for batch, most in enumerate((1000, 400, 1000)):
        target.broker.alter_topic(target.topic, {"max.message.bytes": str(most)})
        numbers = [2 * batch, 2 * batch + 1]
        assert sink.write(pa.table({"key": ["k", "k"], "src_offset": numbers, "note": note}), batch)
    assert KafkaTarget.offsets(target) == [0, 1, 3, 4, 5]
    assert [letter["row_value"]["src_offset"] for letter in target.letters()] == [2]


def record_that_only_the_broker_refuses(bench: Bench) -> None:
    """The sink's user may not read the settings of the topic: the batch fails as a whole. With that right, the next start writes it."""
    checkpoint = bench.checkpoint(5)
    sink: Any = bench.target.recipe(checkpoint).make()
    sink._dead_letters.read_limits = lambda: None
    bench.refused("SinkError", lambda: sink.write(bench.target.rows(checkpoint, 0), 0))
    bench.shows()
    assert bench.write(checkpoint, 0)
    bench.shows(*range(5))


def column_that_is_missing(bench: Bench) -> None:
    """Not because of a row: the batch fails."""
    checkpoint = bench.checkpoint(5)
    target: Any = bench.target
    bench.refused("SinkError", lambda: bench.write(checkpoint, 0, value=["missing"]))
    assert target.letters() == []


CHECKS: dict[str, tuple[Callable[[Bench], None], ...]] = {
    "kafka-dead-letters": (
        letters_of_records_have_source_and_reason,
        largest_record_is_written,
        many_records_are_more_than_one_batch,
        records_that_the_producer_does_not_take,
        records_without_a_key,
        letters_that_are_too_large,
        letters_that_do_not_fit_at_all,
        topic_that_would_lose_letters,
        limits_that_change,
        record_that_only_the_broker_refuses,
        column_that_is_missing,
    ),
}
