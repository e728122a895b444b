"""The Kafka sink and the feed against a real broker behind a real Toxiproxy. No Spark."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from onceproof.base.timeline import Timeline
from onceproof.data.numbers import Numbers, NumbersOptions
from onceproof.pipeline.feed import Feeder
from onceproof.scenario.model import InputSpec
from onceproof.sinks import failpoints
from onceproof.sinks.errors import CommitUnknown
from onceproof.sinks.kafka import KafkaTransactional
from onceproof.sinks.kafka_progress import Progress, ProgressReader, ProgressUnreadable
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.kafka.clients import client_config, producer_config
from onceproof.stack.kafka.cluster import EmbeddedKafka

pytestmark = [pytest.mark.real, pytest.mark.services]

MakeCheckpoint = Callable[..., Any]


@pytest.fixture
def broker(stack: EmbeddedStack) -> Iterator[EmbeddedKafka]:
    yield stack.kafka
    stack.kafka.client_proxy(1).heal()


class Topics:
    """A new output topic and pipeline name, one progress topic shared by all, and what a reader gets."""

    progress_topic = "progress"

    def __init__(self, broker: EmbeddedKafka) -> None:
        self.broker = broker
        self.topic = self.pipeline = f"t{uuid.uuid4().hex[:8]}"
        broker.create_topic(self.topic, 1)

    def sink(self, checkpoint: Any, **settings: Any) -> KafkaTransactional:
        return KafkaTransactional(
            self.broker.client_bootstrap,
            self.topic,
            pipeline=self.pipeline,
            progress_topic=self.progress_topic,
            checkpoint=checkpoint.folder,
            key="key",
            **{"transaction_timeout_s": 20, **settings},
        )

    def offsets(self) -> list[int]:
        """The column ``src_offset`` of each record that a read_committed reader gets, in log order."""
        return [json.loads(value)["src_offset"] for _, value in self.records()]

    def records(self) -> list[tuple[bytes | None, bytes]]:
        return read(self.broker, self.topic)

    def last_progress(self, **settings: Any) -> Progress | None:
        reader = ProgressReader(
            client_config(self.broker.harness_bootstrap),
            self.progress_topic,
            self.pipeline,
            **{"timeout_s": 20.0, **settings},
        )
        try:
            return reader.last()
        finally:
            reader.close()


def read(broker: EmbeddedKafka, topic: str, partition: int = 0) -> list[tuple[bytes | None, bytes]]:
    consumer = Consumer(
        {
            **client_config(broker.harness_bootstrap),
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[tuple[bytes | None, bytes]] = []
    try:
        while True:
            message = consumer.poll(20)
            assert message is not None
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF  # type: ignore[union-attr]
                return found
            found.append((message.key(), message.value() or b""))
    finally:
        consumer.close()


@pytest.fixture
def topics(broker: EmbeddedKafka) -> Topics:
    if Topics.progress_topic not in broker.admin().list_topics(timeout=20).topics:
        broker.create_topic(Topics.progress_topic, 1)
    return Topics(broker)


def test_batches_are_written_in_order_with_their_progress(topics: Topics, make_checkpoint: MakeCheckpoint) -> None:
    checkpoint = make_checkpoint(5, 8)
    sink = topics.sink(checkpoint)
    assert sink.write(checkpoint.rows(0), 0)
    assert sink.write(checkpoint.rows(1), 1)
    assert topics.offsets() == list(range(8))
    assert [key for key, _ in topics.records()][:4] == [None, b"k1", b"k0", None]
    assert json.loads(topics.records()[0][1]) == {"key": None, "src_offset": 0}
    progress = topics.last_progress()
    assert progress is not None
    assert (progress.batch_id, progress.offsets) == (1, {"t": {"0": 8}})


@pytest.mark.parametrize(("stream", "applied"), [("downstream", True), ("upstream", False)])
def test_a_commit_without_an_answer_is_unknown_until_the_replay(
    topics: Topics, make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch, stream: str, applied: bool
) -> None:
    checkpoint = make_checkpoint(5)
    events: list[str] = []
    proxy = topics.broker.client_proxy(1)

    def cut(point: str, **_facts: Any) -> None:
        if point == "before-sink-commit":
            proxy.add_toxic("timeout", stream, timeout=0)  # type: ignore[arg-type]  # parametrised

    monkeypatch.setattr(failpoints, "reach", cut)
    monkeypatch.setattr(failpoints, "report", lambda event, **_facts: events.append(event))
    failing = topics.sink(checkpoint, commit_timeout_s=1, commit_attempts=2)
    with pytest.raises(CommitUnknown, match=r"the commit of batch 0 .* got no clear answer"):
        failing.write(checkpoint.rows(0), 0)
    assert events == ["commit-failed", "commit-failed", "attempt-failed"]
    monkeypatch.setattr(failpoints, "reach", lambda *_args, **_facts: None)
    del failing  # like a driver that has ended: its producer sends nothing more
    proxy.heal()
    assert topics.sink(checkpoint).write(checkpoint.rows(0), 0) is not applied
    assert topics.offsets() == list(range(5))


def test_progress_is_found_before_many_records_of_other_pipelines(
    topics: Topics, make_checkpoint: MakeCheckpoint
) -> None:
    checkpoint = make_checkpoint(5)
    topics.sink(checkpoint).write(checkpoint.rows(0), 0)
    other = Producer({**producer_config(topics.broker.harness_bootstrap), "linger.ms": 5})
    for _ in range(1_500):
        other.produce(topics.progress_topic, key=b"another", value=b"{}", partition=0)
    assert other.flush(20) == 0
    progress = topics.last_progress()
    assert progress is not None
    assert progress.offsets == {"t": {"0": 5}}


def test_an_open_transaction_of_another_pipeline_does_not_hide_progress(
    topics: Topics, make_checkpoint: MakeCheckpoint
) -> None:
    """It holds the last stable offset back, below our own record: an empty read must not count as "no progress"."""
    checkpoint = make_checkpoint(5)
    other = Producer({**producer_config(topics.broker.harness_bootstrap), "transactional.id": f"{topics.topic}-other"})
    other.init_transactions(20)
    other.begin_transaction()
    other.produce(topics.progress_topic, key=b"another", value=b"{}", partition=0)
    assert other.flush(20) == 0
    committed = Producer(producer_config(topics.broker.harness_bootstrap))
    value = Progress("q", 0, {"t": {"0": 5}}).value()
    committed.produce(topics.progress_topic, key=topics.pipeline.encode(), value=value, partition=0)
    assert committed.flush(20) == 0
    with pytest.raises(ProgressUnreadable, match="an open transaction of another pipeline"):
        topics.last_progress(timeout_s=0.5)
    other.abort_transaction(20)
    assert not topics.sink(checkpoint).write(checkpoint.rows(0), 0)
    assert topics.offsets() == []


def test_each_new_reader_gets_an_answer(topics: Topics) -> None:
    """One in five leader lookups was lost when it was a new client's first request, so forty readers try."""
    for _ in range(40):
        assert topics.last_progress() is None


def test_a_missing_progress_topic_does_not_count_as_no_progress(
    topics: Topics, make_checkpoint: MakeCheckpoint
) -> None:
    checkpoint = make_checkpoint(5)
    topics.progress_topic = "no-such-topic"
    with pytest.raises(ProgressUnreadable, match="no-such-topic/0"):
        topics.sink(checkpoint, transaction_timeout_s=5).write(checkpoint.rows(0), 0)


def test_a_record_that_is_too_large_aborts_the_batch(topics: Topics, make_checkpoint: MakeCheckpoint) -> None:
    checkpoint = make_checkpoint(2)
    rows = pa.table({"key": ["a", "b"], "src_offset": [0, 1], "payload": ["x", "y" * 2_000_000]})
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        topics.sink(checkpoint).write(rows, 0)
    assert topics.offsets() == []
    assert topics.sink(checkpoint).write(checkpoint.rows(0), 0)


class Ledger:
    def __init__(self) -> None:
        self.rows: list[Any] = []

    def append(self, table: str, rows: Any) -> None:
        assert table == "sent"
        self.rows += rows


def test_the_feed_records_the_offset_of_each_record(broker: EmbeddedKafka, tmp_path: Path) -> None:
    topic = f"in{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, 2)
    numbers = Numbers(NumbersOptions(rows=1_000, keys=7), seed=1)
    spec = InputSpec(topic=topic, dataset="numbers", partitions=2, chunks=3)
    ledger = Ledger()
    feeder = Feeder(broker.harness_client(), numbers, spec, ledger, Timeline(tmp_path / "events.jsonl"))
    ends = [feeder.send_chunk(index) for index in range(3)]
    feeder.close()
    assert [sum(end.values()) for end in ends] == [333, 666, 1_000]
    assert {row["status"] for row in ledger.rows} == {"acked"}
    assert sorted(row["seq"] for row in ledger.rows) == list(range(1_000))
    sent = [(record.key, record.value) for record in numbers.records(0, 1_000)]
    for partition in (0, 1):
        log = read(broker, topic, partition)
        places = {row["offset"]: row["seq"] for row in ledger.rows if row["partition"] == partition}
        assert log == [sent[places[offset]] for offset in range(len(log))]
        assert [places[offset] for offset in range(len(log))] == sorted(places.values())


def test_the_feed_records_a_refused_record_as_failed(broker: EmbeddedKafka, tmp_path: Path) -> None:
    topic = f"in{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, 1)
    numbers = Numbers(NumbersOptions(rows=2, payload_bytes=2_000_000), seed=1)
    ledger = Ledger()
    spec = InputSpec(topic=topic, dataset="numbers", partitions=1, chunks=1)
    feeder = Feeder(broker.harness_client(), numbers, spec, ledger, Timeline(tmp_path / "events.jsonl"))
    assert feeder.send_chunk(0) == {0: 0}
    assert [row["status"] for row in ledger.rows] == ["failed", "failed"]
    assert "MSG_SIZE_TOO_LARGE" in ledger.rows[0]["error"]
