"""Reads topics back after a run, through both isolation levels, into the history.

Each partition is read twice at the same time: read_uncommitted gives every record, read_committed says which of them
a consumer may see. A record that only the first shows is *aborted* below the last stable offset and *open* at or
above it (Kafka's KIP-98); one that is committed while it is read counts as committed. Offsets have holes, for
transaction markers use them up: a hole is no loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # documented, not re-exported

from onceproof.errors import HistoryError
from onceproof.events import Timeline
from onceproof.history.schema import TABLES
from onceproof.history.writer import HistoryWriter
from onceproof.stack.api import Kafka
from onceproof.stack.clients import client_config
from onceproof.waiting import wait_until

COMMITTED, ABORTED, OPEN = "committed", "aborted", "open"

_BATCH = 2_000
# librdkafka waits until it has a whole batch or this is over, and the last batch of a partition is never whole.
_FILL_S = 0.05
# Nothing else talks to the brokers at this time, so a partition that gives nothing for so long gives nothing at all.
_SILENCE_S = 60.0


@dataclass
class ReadBack:
    """How many records a topic holds, by visibility, and where each partition ends."""

    committed: int = 0
    aborted: int = 0
    open: int = 0
    ends: dict[int, int] | None = None
    """Partition -> high watermark."""


def collect_input(kafka: Kafka, topics: list[str], writer: HistoryWriter, timeline: Timeline) -> dict[str, ReadBack]:
    """Write what the input topics really hold to table ``input``, in offset order within a partition.

    Raises `HistoryError` for a topic that does not exist or a record that cannot be read, `WaitTimeout` where a
    partition stays silent.
    """
    found: dict[str, ReadBack] = {}
    for topic in topics:
        with _Reader(kafka.harness_bootstrap) as reader:
            found[topic] = reader.copy(topic, writer, "input", _input_batch)
        timeline.emit("collect.input", topic=topic, committed=found[topic].committed, aborted=found[topic].aborted)
    return found


def collect_output(kafka: Kafka, name: str, topic: str, writer: HistoryWriter) -> ReadBack:
    """Write the output ``name``, which is ``topic``, to table ``output``. Raises as `collect_input`."""

    def batch(_topic: str, partition: int, messages: list[Message], seen: list[str]) -> pa.RecordBatch:
        return _output_batch(name, partition, messages, seen)

    with _Reader(kafka.harness_bootstrap) as reader:
        return reader.copy(topic, writer, "output", batch)


ToBatch = Callable[[str, int, list[Message], list[str]], pa.RecordBatch]


class _Reader:
    """Two consumers over one cluster, one for each isolation level; never in a group, never committing."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._all = Consumer(_settings(bootstrap, "read_uncommitted"))
        self._visible = Consumer(_settings(bootstrap, "read_committed"))

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._all.close()
        self._visible.close()

    def copy(self, topic: str, writer: HistoryWriter, table: str, to_batch: ToBatch) -> ReadBack:
        partitions = self._partitions(topic)
        ends = self._ends(topic, partitions, IsolationLevel.READ_UNCOMMITTED)
        # Asked for before anything is read, so that nothing counts as aborted that was open at the collection's beginning.
        stable = self._ends(topic, partitions, IsolationLevel.READ_COMMITTED)
        result = ReadBack(ends=ends)
        for partition in partitions:
            if ends[partition] == 0:
                continue
            for messages, seen in self._merged(topic, partition, stable[partition]):
                writer.append(table, to_batch(topic, partition, messages, seen))
                result.committed += seen.count(COMMITTED)
                result.aborted += seen.count(ABORTED)
                result.open += seen.count(OPEN)
        return result

    def _partitions(self, topic: str) -> list[int]:
        metadata = self._all.list_topics(topic, timeout=30.0).topics[topic]
        if metadata.error is not None:
            hint = "declare it under pipeline.prepare.topics, or let the job create it before it stops"
            raise HistoryError(f"topic {topic!r} cannot be read back: {metadata.error.str()}", hint=hint)
        return sorted(metadata.partitions)

    def _ends(self, topic: str, partitions: list[int], level: IsolationLevel) -> dict[int, int]:
        admin = AdminClient(client_config(self._bootstrap))
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {TopicPartition(topic, p): latest for p in partitions}
        answers = admin.list_offsets(asked, isolation_level=level, request_timeout=30.0)
        return {place.partition: answer.result().offset for place, answer in answers.items()}

    def _merged(self, topic: str, partition: int, stable: int) -> Iterator[tuple[list[Message], list[str]]]:
        """Every record of the partition with its visibility, in batches, in offset order."""
        visible = _offsets(_batches(self._visible, topic, partition))
        head = next(visible, None)
        for messages in _batches(self._all, topic, partition):
            seen: list[str] = []
            for message in messages:
                offset = _offset(message)
                while head is not None and head < offset:
                    head = next(visible, None)
                seen.append(COMMITTED if head == offset else ABORTED if offset < stable else OPEN)
            yield messages, seen


def _settings(bootstrap: str, isolation: str) -> dict[str, Any]:
    return {
        **client_config(bootstrap),
        # librdkafka asks for a group even of a consumer that never joins one.
        "group.id": "onceproof-collector",
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        # The end of a partition cannot be told from the last record: markers and aborted records stand behind it.
        "enable.partition.eof": True,
        # librdkafka reads ahead 64 MiB a partition unless told otherwise.
        "queued.min.messages": 2 * _BATCH,
        "queued.max.messages.kbytes": 4096,
        "fetch.message.max.bytes": 1 << 20,
        # Once its queue is full librdkafka stops fetching for a second unless told otherwise, and at the end of a
        # partition the broker holds its answer for half a second.
        "fetch.queue.backoff.ms": 5,
        "fetch.wait.max.ms": 5,
    }


def _batches(consumer: Consumer, topic: str, partition: int) -> Iterator[list[Message]]:
    """Batches of records from the partition's beginning until its end; the consumer is then free for another."""
    low, _high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30.0)
    consumer.assign([TopicPartition(topic, partition, low)])
    position, ended = low, False
    while not ended:
        reason = f"records of {topic}/{partition} from offset {position}"
        messages = wait_until(reason, lambda: consumer.consume(_BATCH, timeout=_FILL_S), deadline_s=_SILENCE_S)
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended = True
            elif not error.retriable():
                raise HistoryError(f"{topic}/{partition} cannot be read back beyond offset {position}: {error.str()}")
        if records:
            position = _offset(records[-1]) + 1
            yield records
    consumer.unassign()


def _offsets(batches: Iterator[list[Message]]) -> Iterator[int]:
    for messages in batches:
        for message in messages:
            yield _offset(message)


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None, "a record that was read has an offset"
    return offset


def _input_batch(topic: str, partition: int, messages: list[Message], seen: list[str]) -> pa.RecordBatch:
    count = len(messages)
    columns = [
        [topic] * count,
        [partition] * count,
        [m.offset() for m in messages],
        [m.key() for m in messages],
        [m.value() for m in messages],
        [m.timestamp()[1] for m in messages],
        [visibility == COMMITTED for visibility in seen],
    ]
    return _batch("input", columns)


def _output_batch(name: str, partition: int, messages: list[Message], seen: list[str]) -> pa.RecordBatch:
    count = len(messages)
    content, raw = zip(*(_text(m.value()) for m in messages), strict=True)
    nothing = [None] * count
    columns = [
        [name] * count,
        ["insert"] * count,
        [partition] * count,
        [m.offset() for m in messages],
        nothing,
        nothing,
        [m.key() for m in messages],
        content,
        raw,
        nothing,
        seen,
    ]
    return _batch("output", columns)


def _batch(table: str, columns: list[Any]) -> pa.RecordBatch:
    schema = TABLES[table]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


def _text(value: bytes | None) -> tuple[str | None, bytes | None]:
    """The value as text, and the bytes themselves where they are none."""
    if value is None:
        return None, None
    try:
        return value.decode("utf-8"), None
    except UnicodeDecodeError:
        return None, value
