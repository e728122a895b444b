"""Reads topics back after a run, with both isolation levels, into the history.

Each partition is read twice at the same time: read_uncommitted returns every record, read_committed those that a consumer may
see. A record that only read_uncommitted returns is *aborted* below the last stable offset and *open* at or above it
(KIP-98); one that is committed while it is read counts as committed. Offsets have holes, because transaction markers use
some up: a hole is not a loss.

Consumers decide what is visible. If the brokers' log files can be read, they add the producer of a record and the
marker that ended its transaction (`onceproof.stores.kafka.partition_log`), and must not contradict the consumers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # documented, not re-exported

from onceproof.base.errors import HistoryError, WaitTimeout
from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.sinks.kafka_clients import meet_brokers
from onceproof.stores.kafka.partition_log import PartitionLog
from onceproof.stores.kafka.rows import ABORTED, COMMITTED, OPEN, LogColumns, input_batch, offset_of, output_batch

_BATCH = 2_000
# librdkafka waits for a full batch or for this long, and the last batch of a partition is never full.
_FILL_S = 0.05
# No other client uses the brokers now, so a partition that returns nothing for this long will not return anything.
_SILENCE_S = 60.0


class Rows(Protocol):
    """The part of the history writer that the collector uses."""

    def append(self, table: str, rows: Iterable[Mapping[str, Any]] | pa.RecordBatch) -> None: ...


class Cluster(Protocol):
    """What the collector needs of Kafka. `onceproof.stack.api.Kafka` provides it."""

    def harness_client(self) -> dict[str, Any]: ...

    def await_markers(self) -> None:
        """Wait until the partitions have the markers of all transactions that have ended."""

    def log_folders(self, topic: str) -> Mapping[int, Path]:
        """Partition -> folder of its leader's log; empty if the brokers' files cannot be read."""

    def update_log(self, topic: str, partition: int, folder: Path) -> object:
        """Bring a folder of `log_folders` up to date, if it is a copy."""


@dataclass
class TopicCounts:
    """How many records a topic holds, by visibility, and the end of each partition."""

    committed: int = 0
    aborted: int = 0
    open: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    """Partition -> high watermark."""


def collect_topics(
    kafka: Cluster,
    inputs: list[str],
    outputs: Mapping[str, str],
    writer: Rows,
    timeline: Timeline,
    *,
    names: Mapping[str, str] | None = None,
) -> tuple[dict[str, TopicCounts], dict[str, TopicCounts]]:
    """Write what the topics hold to tables ``input``, ``output`` and ``partitions``.

    ``inputs`` are topics, ``outputs`` maps an output's name to its topic; the results have the same keys. ``names``
    maps a topic to its name in the history, where the two differ. Rows are in offset order within a partition. Raises
    `HistoryError` for a topic that does not exist, a record that cannot be read, or a log that contradicts the
    consumers, and `WaitTimeout` if a partition returns nothing.
    """
    found: dict[str, TopicCounts] = {}
    back: dict[str, TopicCounts] = {}
    with _Reader(kafka, writer, timeline, names or {}) as reader:
        reader.await_markers()
        for topic in dict.fromkeys(inputs):
            found[topic] = reader.copy(topic, "input", partial(input_batch, reader.name(topic)))
            timeline.emit("collect.input", topic=topic, committed=found[topic].committed, aborted=found[topic].aborted)
        for name, topic in outputs.items():
            back[name] = reader.copy(topic, "output", partial(output_batch, name))
    return found, back


def read_before(kafka: Cluster, topic: str, partition: int, offset: int, name: str) -> list[pa.RecordBatch]:
    """The records of a partition before this offset, as rows of the table ``input``. ``name``: of the topic in the history.

    Raises as `collect_topics`.
    """
    kept = _Kept(partition, offset)
    with _Reader(kafka, kept, None, {topic: name}) as reader:
        reader.await_markers()
        reader.copy(topic, "input", partial(input_batch, name))
    return kept.batches


@dataclass
class _Kept:
    """Keeps the input before an offset of one partition, in memory."""

    partition: int
    before: int
    batches: list[pa.RecordBatch] = field(default_factory=list)

    def append(self, table: str, rows: Iterable[Mapping[str, Any]] | pa.RecordBatch) -> None:
        if table == "input" and isinstance(rows, pa.RecordBatch):
            wanted = pc.and_(
                pc.equal(rows.column("partition"), self.partition), pc.less(rows.column("offset"), self.before)
            )
            self.batches.append(rows.filter(wanted))


@dataclass(frozen=True)
class _Span:
    """Log start offset, last stable offset and high watermark of a partition."""

    start: int
    stable: int
    end: int


class _Reader:
    """Two consumers of one cluster, one per isolation level. They join no group and commit nothing."""

    def __init__(self, kafka: Cluster, writer: Rows, timeline: Timeline | None, names: Mapping[str, str]) -> None:
        self._kafka = kafka
        self._names = names
        self._writer = writer
        self._timeline = timeline
        self._admin = AdminClient(kafka.harness_client())
        self._all = Consumer(_settings(kafka.harness_client(), "read_uncommitted"))
        self._visible = Consumer(_settings(kafka.harness_client(), "read_committed"))
        self._spans: dict[str, dict[int, _Span]] = {}

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._all.close()
        self._visible.close()

    def name(self, topic: str) -> str:
        return self._names.get(topic, topic)

    def await_markers(self) -> None:
        """Otherwise the last batch could look like a transaction that was left open."""
        try:
            self._kafka.await_markers()
        except WaitTimeout as gave_up:
            if self._timeline is not None:
                message = f"records of transactions that are still ending count as open: {gave_up.message}"
                self._timeline.emit("warning", message=message)

    def copy(self, topic: str, table: str, to_batch: Callable[..., pa.RecordBatch]) -> TopicCounts:
        spans = self._measured(topic)
        folders = self._kafka.log_folders(topic)
        result = TopicCounts(ends={partition: span.end for partition, span in spans.items()})
        for partition, span in spans.items():
            if span.end == span.start:
                continue
            with ExitStack() as closing:
                folder = folders.get(partition)
                log, where = self._log(folder, closing), f"{topic}/{partition}"
                update = None if folder is None else partial(self._kafka.update_log, topic, partition, folder)
                columns = LogColumns(log, where, update)
                for messages, seen in self._merged(topic, partition, span):
                    self._writer.append(table, to_batch(partition, messages, seen, **columns.of(messages, seen)))
                    result.committed += seen.count(COMMITTED)
                    result.aborted += seen.count(ABORTED)
                    result.open += seen.count(OPEN)
        return result

    def _measured(self, topic: str) -> dict[int, _Span]:
        """The offsets of the topic's partitions, read once and before any of its records.

        So a record that was open when the collection began never counts as aborted.
        """
        if topic not in self._spans:
            partitions = self._partitions(topic)
            ask = partial(self._offsets, topic, partitions)
            starts = ask(OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)  # type: ignore[no-untyped-call]
            ends = ask(OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)  # type: ignore[no-untyped-call]
            stable = ask(OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)  # type: ignore[no-untyped-call]
            at = {"topic": self.name(topic), "collected_ms": int(time.time() * 1000)}
            # The stable offset was read last, so it may be above the end offset that was read before.
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
        # The two consumers get the metadata as well: a consumer that is assigned an unknown topic looks for its leader
        # only a second later.
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
        """The partition's log, or None if it cannot be read: the history then lacks what it would have added."""
        if folder is None:
            return None
        try:
            return closing.enter_context(PartitionLog.open(folder))
        except HistoryError as unreadable:
            if self._timeline is not None:
                self._timeline.emit("collect.log_unreadable", why=str(unreadable))
            return None

    def _merged(self, topic: str, partition: int, span: _Span) -> Iterator[tuple[list[Message], list[str]]]:
        """Every record of the partition with its visibility, in batches and in offset order."""
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


def _settings(client: Mapping[str, Any], isolation: str) -> dict[str, Any]:
    return {
        # librdkafka requires a group id even for a consumer that never joins a group.
        "group.id": "onceproof-collector",
        **client,
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        # The last record does not show the end of a partition: markers and aborted records may follow it.
        "enable.partition.eof": True,
        # By default librdkafka prefetches 64 MiB per partition.
        "queued.min.messages": 2 * _BATCH,
        "queued.max.messages.kbytes": 4096,
        "fetch.message.max.bytes": 1 << 20,
        # By default librdkafka stops fetching for a second once its queue is full, and at the end of a partition the broker
        # delays its answer by half a second.
        "fetch.queue.backoff.ms": 5,
        "fetch.wait.max.ms": 5,
    }


def _batches(consumer: Consumer, topic: str, partition: int, span: _Span) -> Iterator[list[Message]]:
    """The partition's records within ``span``, in batches. Afterwards the consumer has no assignment."""
    consumer.assign([TopicPartition(topic, partition, span.start)])
    position, ended = span.start, False
    while not ended:
        reason = f"records of {topic}/{partition} from offset {position}"
        messages = wait_until(reason, lambda: consumer.consume(_BATCH, timeout=_FILL_S), deadline_s=_SILENCE_S)
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                # Records written after the end was measured are not part of this history.
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
