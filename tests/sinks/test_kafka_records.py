"""The records and the transactions of the Kafka sink, on the broker that librdkafka has in itself. No service is started."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from onceproof.sinks import failpoints
from onceproof.sinks.errors import RecordRefused, SinkError
from onceproof.sinks.kafka import KafkaTransactional
from onceproof.sinks.kafka_dead_letters import DeadLetterTopic
from onceproof.sinks.kafka_records import readable

MakeCheckpoint = Callable[..., Any]
BROKER = {"test.mock.num.brokers": "1"}


def sink(checkpoint: Path, *, config: dict[str, Any] | None = None, **settings: Any) -> KafkaTransactional:
    return KafkaTransactional(
        "127.0.0.1:9",
        "out",
        pipeline="p",
        progress_topic="progress",
        checkpoint=checkpoint,
        transaction_timeout_s=10,
        config={**BROKER, **(config or {})},
        **settings,
    )


def record(row: dict[str, Any], **settings: Any) -> tuple[bytes | None, Any]:
    key, value = sink(Path("nowhere"), **settings)._record(row)
    return key, json.loads(value, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))


@pytest.mark.parametrize(
    ("key", "expected"),
    [("k\u00e9", b"k\xc3\xa9"), (b"k1", b"k1"), (b"\x00\xff", b"\x00\xff"), (b"", b""), (7, b"7"), (None, None)],
)
def test_a_key_is_its_text_or_its_bytes(key: Any, expected: bytes | None) -> None:
    """Spark's Kafka source gives keys as bytes."""
    assert record({"key": key, "v": 1}, key="key", value=["v"]) == (expected, {"v": 1})


def test_values_are_json() -> None:
    row = {
        "at": datetime(2013, 1, 1, 5, tzinfo=UTC),
        "on": date(2013, 1, 1),
        "money": Decimal("0.10"),
        "many": [1.5, None],
        "none": None,
    }
    expected = {
        "at": "2013-01-01T05:00:00+00:00",
        "on": "2013-01-01",
        "money": "0.10",
        "many": [1.5, None],
        "none": None,
    }
    assert record(row) == (None, expected)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (-float("inf"), "-inf"),
        ([0.5, float("nan")], r"\[0.5, nan\]"),
        ({"deep": [float("inf")]}, r"\{'deep': \[inf\]\}"),
        (b"x" * 100, r"b'x+\.\.\.x+'"),
    ],
)
def test_a_value_that_json_lacks_is_refused_with_its_column(value: Any, shown: str) -> None:
    with pytest.raises(
        SinkError, match=rf"column 'v' of topic 'out' holds {shown}, which has no form in JSON"
    ) as refused:
        record({"key": "k", "fine": 1.0, "v": value}, key="key")
    assert "in the query" in (refused.value.hint or "")


def test_a_missing_column_is_refused_with_those_that_are_there() -> None:
    for settings in ({"key": "k"}, {"value": ["k"]}):
        with pytest.raises(SinkError, match="the batch has no column 'k', but a, b"):
            record({"a": 1, "b": 2}, **settings)


@pytest.mark.parametrize(
    ("rows", "settings", "error"),
    [
        (pa.table({"v": [b"bytes"]}), {}, SinkError),
        (pa.table({"v": [1]}), {"key": "missing"}, SinkError),
        # a join gives two columns one name
        (pa.table([[1], [2]], names=["v", "v"]), {}, SinkError),
        (pa.table({"v": [pa.scalar(10**6, pa.duration("s")).as_py()]}), {}, SinkError),
        # not an error of the sink or of Kafka
        ("no table", {}, AttributeError),
    ],
)
def test_any_error_aborts_the_transaction_and_is_reported(
    make_checkpoint: MakeCheckpoint,
    monkeypatch: pytest.MonkeyPatch,
    rows: Any,
    settings: dict[str, Any],
    error: type[Exception],
) -> None:
    events: list[str] = []
    monkeypatch.setattr(failpoints, "report", lambda event, **_facts: events.append(event))
    made = sink(make_checkpoint(5).folder, **settings)
    producer = Producer(made._producer_settings)
    monkeypatch.setattr("confluent_kafka.Producer", lambda _settings: producer)
    with pytest.raises(error):
        made.write(rows, 0)
    assert events == ["attempt-failed"]
    producer.begin_transaction()  # refused if one is open
    with pytest.raises(KafkaException):
        producer.begin_transaction()
    producer.abort_transaction(10)


def test_a_batch_is_written_with_settings_that_are_the_users(make_checkpoint: MakeCheckpoint) -> None:
    own = {"linger.ms": 0, "partitioner": "consistent", "log_level": 2}
    made = sink(make_checkpoint(5).folder, config=own)
    assert made._producer_settings.items() >= own.items()
    assert made.write(pa.table({"v": [1]}), 0)


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("bootstrap.servers", "give it as bootstrap"),
        ("transactional.id", "give it as pipeline"),
        ("transaction.timeout.ms", "give it as transaction_timeout_s"),
        ("message.timeout.ms", "give it as transaction_timeout_s"),
        ("delivery.timeout.ms", "give it as transaction_timeout_s"),
        ("enable.idempotence", "leave it out"),
        ("isolation.level", "leave it out"),
    ],
)
def test_settings_that_the_sink_depends_on_are_refused(setting: str, hint: str) -> None:
    with pytest.raises(SinkError, match=f"config must not set '{setting}'") as refused:
        sink(Path("nowhere"), config={setting: "1"})
    assert hint in (refused.value.hint or "")


def test_without_the_right_to_read_the_topics_settings_only_the_producers_limit_counts() -> None:
    topics = DeadLetterTopic({"message.max.bytes": "1000"}, "out", "dead", "p", timeout_s=1)
    assert topics.batch_bytes() == 1_000_000
    described: Future[Any] = Future()
    described.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    limits = topics._limits("out", described)
    assert (limits.producer_bytes, limits.topic_bytes, limits.needs_key) == (1000, None, False)
    assert limits.fitting((None, b"x" * 1000)) == (None, b"x" * 1000)
    with pytest.raises(RecordRefused, match=r"a record of 1,001 bytes .* is larger than message.max.bytes \(1,000\)"):
        limits.fitting((b"k", b"x" * 1000))


@pytest.mark.parametrize(
    ("code", "error"), [(KafkaError.UNKNOWN_TOPIC_OR_PART, SinkError), (KafkaError._TIMED_OUT, KafkaException)]
)
def test_settings_that_cannot_be_read_fail_the_batch(code: int, error: type[Exception]) -> None:
    described: Future[Any] = Future()
    described.set_exception(KafkaException(KafkaError(code)))
    with pytest.raises(error):
        DeadLetterTopic({}, "out", "dead", "p", timeout_s=1)._limits("dead", described)


def test_values_that_json_lacks_are_readable() -> None:
    row = {
        "n": float("nan"),
        "b": b"\xff",
        "at": date(2013, 1, 1),
        "in": [{"deep": Decimal("0.10")}],
        "t": (True, None),
    }
    assert readable(row) == {"n": "nan", "b": "ff", "at": "2013-01-01", "in": [{"deep": "0.10"}], "t": [True, None]}


@pytest.mark.parametrize(
    ("topic", "said"),
    [("out", "which this sink writes its records to"), ("p", "which this sink keeps its progress in")],
)
def test_dead_letters_need_a_topic_of_their_own(topic: str, said: str) -> None:
    with pytest.raises(SinkError, match=rf"dead_letters names topic '{topic}', {said}\n  create another topic"):
        KafkaTransactional("127.0.0.1:1", "out", pipeline="p", progress_topic="p", checkpoint="c", dead_letters=topic)
