"""Reads topics back after a run, through both isolation levels, into the history.

Each partition is read twice at the same time: read_uncommitted gives every record, read_committed says which of them
a consumer may see. A record that only the first shows is *aborted* below the last stable offset and *open* at or
above it (Kafka's KIP-98); one that is committed while it is read counts as committed. Offsets have holes, for
transaction markers use them up: a hole is no loss.

Consumers decide what is visible. Where the brokers' log files are at hand, they add who produced a record and which
marker ended its transaction (`onceproof.stores.kafka.partition_log`), and must not contradict the consumers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # documented, not re-exported

from onceproof.base.errors import HistoryError
from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.history.writer import HistoryWriter
from onceproof.sinks.kafka_clients import meet_brokers
from onceproof.stack.kafka.clients import client_config
from onceproof.stores.kafka.partition_log import PartitionLog
from onceproof.stores.kafka.rows import ABORTED, COMMITTED, OPEN, LogColumns, input_batch, offset_of, output_batch

_BATCH = 2_000
# librdkafka waits until it has a whole batch or this is over, and the last batch of a partition is never whole.
_FILL_S = 0.05
# Nothing else talks to the brokers at this time, so a partition that gives nothing for so long gives nothing at all.
_SILENCE_S = 60.0


class Cluster(Protocol):
    """What the collector needs of a Kafka: `onceproof.stack.api.Kafka` is one."""

    @property
    def harness_bootstrap(self) -> str: ...

    def log_folders(self, topic: str) -> Mapping[int, Path]:
        """Partition -> folder of its leader's log; nothing where the brokers' files are out of reach."""


@dataclass
class ReadBack:
    """How many records a topic holds, by visibility, and where each partition ends."""

    committed: int = 0
    aborted: int = 0
    open: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    """Partition -> high watermark."""


def collect_topics(
    kafka: Cluster,
    inputs: list[str],
    outputs: Mapping[str, str],
    writer: HistoryWriter,
    timeline: Timeline,
    *,
    names: Mapping[str, str] | None = None,
) -> tuple[dict[str, ReadBack], dict[str, ReadBack]]:
    """Write what the topics really hold: tables ``input``, ``output`` and ``partitions``.

    ``inputs`` are topics, ``outputs`` maps an output's name to its topic; the results are keyed in the same way. ``names``:
    what a topic is called in the history, where that is not its own name. Rows
    are in offset order within a partition. Raises `HistoryError` for a topic that does not exist, a record that cannot
    be read, or a log that contradicts what consumers are shown, and `WaitTimeout` where a partition stays silent.
    """
    found: dict[str, ReadBack] = {}
    back: dict[str, ReadBack] = {}
    with _Reader(kafka, writer, timeline, names or {}) as reader:
        for topic in dict.fromkeys(inputs):
            found[topic] = reader.copy(topic, "input", partial(input_batch, reader.name(topic)))
            timeline.emit("collect.input", topic=topic, committed=found[topic].committed, aborted=found[topic].aborted)
        for name, topic in outputs.items():
            back[name] = reader.copy(topic, "output", partial(output_batch, name))
    return found, back


@dataclass(frozen=True)
class _Span:
    """Where one partition begins and ends: log start offset, last stable offset, high watermark."""

    start: int
    stable: int
    end: int


class _Reader:
    """Two consumers over one cluster, one for each isolation level; never in a group, never committing."""

    def __init__(self, kafka: Cluster, writer: HistoryWriter, timeline: Timeline, names: Mapping[str, str]) -> None:
        self._kafka = kafka
        self._names = names
        self._writer = writer
        self._timeline = timeline
        self._admin = AdminClient(client_config(kafka.harness_bootstrap))
        self._all = Consumer(_settings(kafka.harness_bootstrap, "read_uncommitted"))
        self._visible = Consumer(_settings(kafka.harness_bootstrap, "read_committed"))
        self._spans: dict[str, dict[int, _Span]] = {}

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._all.close()
        self._visible.close()

    def name(self, topic: str) -> str:
        return self._names.get(topic, topic)

    def copy(self, topic: str, table: str, to_batch: Callable[..., pa.RecordBatch]) -> ReadBack:
        spans = self._measured(topic)
        folders = self._kafka.log_folders(topic)
        result = ReadBack(ends={partition: span.end for partition, span in spans.items()})
        for partition, span in spans.items():
            if span.end == span.start:
                continue
            with ExitStack() as closing:
                log = self._log(folders.get(partition), closing)
                columns = LogColumns(log, f"{topic}/{partition}")
                for messages, seen in self._merged(topic, partition, span):
                    self._writer.append(table, to_batch(partition, messages, seen, **columns.of(messages, seen)))
                    result.committed += seen.count(COMMITTED)
                    result.aborted += seen.count(ABORTED)
                    result.open += seen.count(OPEN)
        return result

    def _measured(self, topic: str) -> dict[int, _Span]:
        """Where the topic's partitions begin and end, asked for once and before anything of it is read.

        So nothing counts as aborted that was open when the collection began.
        """
        if topic not in self._spans:
            partitions = self._partitions(topic)
            ask = partial(self._offsets, topic, partitions)
            starts = ask(OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)  # type: ignore[no-untyped-call]
            ends = ask(OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)  # type: ignore[no-untyped-call]
            stable = ask(OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)  # type: ignore[no-untyped-call]
            at = {"topic": self.name(topic), "collected_ms": int(time.time() * 1000)}
            # Asked for last, it may be above an end that was asked for before it.
            self._spans[topic] = {p: _Span(starts[p], min(stable[p], ends[p]), ends[p]) for p in partitions}
            self._writer.append(
                "partitions",
                [
                    {**at, "partition": p, "start_offset": s.start, "stable_offset": s.stable, "end_offset": s.end}
                    for p, s in self._spans[topic].items()
                ],
            )
        return self._spans[topic]

    def _partitions(self, topic: str) -> list[int]:
        metadata = meet_brokers(self._admin, topic, timeout_s=30.0).topics[topic]
        # Heard of by those that read as well: one that is told to read what it has never heard of looks for a leader a second later.
        for reader in (self._all, self._visible):
            reader.list_topics(topic, timeout=30.0)
        if metadata.error is not None:
            hint = "declare it under pipeline.prepare.topics, or let the job create it before it stops"
            raise HistoryError(f"topic {topic!r} cannot be read back: {metadata.error.str()}", hint=hint)
        return sorted(metadata.partitions)

    def _offsets(self, topic: str, partitions: list[int], spec: OffsetSpec, level: IsolationLevel) -> dict[int, int]:
        asked = {TopicPartition(topic, p): spec for p in partitions}
        answers = self._admin.list_offsets(asked, isolation_level=level, request_timeout=30.0)
        return {place.partition: answer.result().offset for place, answer in answers.items()}

    def _log(self, folder: Path | None, closing: ExitStack) -> PartitionLog | None:
        """The log, if it is one that can be read; the history then goes without what it would have added."""
        if folder is None:
            return None
        try:
            return closing.enter_context(PartitionLog.open(folder))
        except HistoryError as unreadable:
            self._timeline.emit("collect.log_unreadable", why=str(unreadable))
            return None

    def _merged(self, topic: str, partition: int, span: _Span) -> Iterator[tuple[list[Message], list[str]]]:
        """Every record of the partition with its visibility, in batches, in offset order."""
        visible = _offsets(_batches(self._visible, topic, partition, span))
        head = next(visible, None)
        for messages in _batches(self._all, topic, partition, span):
            seen: list[str] = []
            for message in messages:
                offset = offset_of(message)
                while head is not None and head < offset:
                    head = next(visible, None)
                seen.append(COMMITTED if head == offset else ABORTED if offset < span.stable else OPEN)
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


def _batches(consumer: Consumer, topic: str, partition: int, span: _Span) -> Iterator[list[Message]]:
    """Batches of the partition's records within ``span``; the consumer is then free for another partition."""
    consumer.assign([TopicPartition(topic, partition, span.start)])
    position, ended = span.start, False
    while not ended:
        reason = f"records of {topic}/{partition} from offset {position}"
        messages = wait_until(reason, lambda: consumer.consume(_BATCH, timeout=_FILL_S), deadline_s=_SILENCE_S)
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                # What came after the end was asked for is not part of this history.
                ended = ended or offset_of(message) >= span.end
                if not ended:
                    records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended = True
            elif not error.retriable():
                raise HistoryError(f"{topic}/{partition} cannot be read back beyond offset {position}: {error.str()}")
        if records:
            position = offset_of(records[-1]) + 1
            yield records
    consumer.unassign()


def _offsets(batches: Iterator[list[Message]]) -> Iterator[int]:
    for messages in batches:
        for message in messages:
            yield offset_of(message)
