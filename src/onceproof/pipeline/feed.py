"""Feeds an input topic from its data set, in chunks, and records the outcome of each record in a ledger."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from onceproof.base.errors import ServiceFailed
from onceproof.base.timeline import Timeline
from onceproof.data import Record, Records
from onceproof.scenario.model import InputSpec

_LEDGER_ROWS = 4096
#: librdkafka's RD_KAFKA_PARTITION_UA: the partitioner chooses.
_BY_KEY = -1
_CHUNK_DEADLINE_S = 120.0
_MESSAGE_TIMEOUT_S = 60.0

# Errors with which the broker, or librdkafka before sending, refuses a record: it is certainly not in the log. After any
# other error (a time-out, a lost connection) it may be.
_REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._PURGE_QUEUE,
}


class Ledger(Protocol):
    """The part of the history writer that the feed uses to record outcomes."""

    def append(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None: ...


class Feeder:
    """Sends one input's records, chunk after chunk, through the harness's own listeners, which no fault cuts.

    The producer is idempotent with ``acks=all``, so the log contains each record once and in order within its partition.
    Records with a key go to the partition that Java's default partitioner (murmur2) chooses, records without one in turn.
    """

    def __init__(
        self, client: Mapping[str, Any], dataset: Records, spec: InputSpec, writer: Ledger, timeline: Timeline
    ) -> None:
        self._dataset = dataset
        self._spec = spec
        self._writer = writer
        self._timeline = timeline
        self.rows = dataset.rows() if spec.rows is None else spec.rows
        self.ends: dict[int, int] = dict.fromkeys(range(spec.partitions), 0)
        """Partition -> end offset (exclusive) of the records acknowledged so far."""
        self._outcomes: list[dict[str, Any]] = []
        self._outstanding: set[int] = set()
        self._acknowledged = 0
        settings = {
            **client,
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",
            "message.timeout.ms": int(_MESSAGE_TIMEOUT_S * 1000),
            "linger.ms": 5,
            # Limits the records in memory, whatever the size of a chunk.
            "queue.buffering.max.messages": 20_000,
            "queue.buffering.max.kbytes": 32_768,
        }
        self._producer = Producer(settings)

    def chunk(self, index: int) -> tuple[int, int]:
        """The records [start, stop) of chunk ``index``, counted from 0; chunks differ by one record at most."""
        return self.rows * index // self._spec.chunks, self.rows * (index + 1) // self._spec.chunks

    def warm_up(self) -> None:
        """Load the data set. Called while the job starts, so that it costs the run no time."""
        next(self._dataset.records(0, 1), None)

    def send_chunk(self, index: int) -> dict[int, int]:
        """Send chunk ``index`` and wait for every record's outcome. Returns `ends`.

        Raises `ServiceFailed` if records have no outcome at the deadline; the ledger lists these as unknown.
        """
        start, stop = self.chunk(index)
        deadline = time.monotonic() + _CHUNK_DEADLINE_S
        for seq, record in enumerate(self._dataset.records(start, stop), start):
            self._send(seq, record, deadline)
        # librdkafka gives up on each record after its own time-out, so this ends earlier unless the process gets no CPU time.
        self._producer.flush(max(0.1, deadline - time.monotonic()))
        self._give_up_outstanding()
        self._timeline.emit(
            "feed.chunk",
            topic=self._spec.topic,
            chunk=index + 1,
            of=self._spec.chunks,
            records=stop - start,
            acknowledged=self._acknowledged,
        )
        return dict(self.ends)

    def close(self) -> None:
        """Wait for the last records and write their outcomes. Idempotent."""
        self._producer.flush(5)
        self._write_ledger()

    def _send(self, seq: int, record: Record, deadline: float) -> None:
        self._outstanding.add(seq)
        # The key decides the partition. Without a key the record's number does, so that each run of a scenario has the same
        # record at the same offset.
        partition = _BY_KEY if record.key is not None else seq % self._spec.partitions
        while True:
            try:
                self._producer.produce(
                    self._spec.topic,
                    value=record.value,
                    key=record.key,
                    partition=partition,
                    timestamp=record.timestamp_ms,
                    headers=list(record.headers),
                    on_delivery=partial(self._delivered, seq),
                )
                break
            except BufferError:  # the queue is full: poll until acknowledgements make room
                if time.monotonic() > deadline:
                    self._give_up_outstanding()
                self._producer.poll(0.1)
            except KafkaException as error:
                self._note(seq, error.args[0], None, None)
                break
        self._producer.poll(0)

    def _delivered(self, seq: int, error: KafkaError | None, message: Message) -> None:
        """Called by librdkafka within poll and flush, once per record."""
        self._note(seq, error, message.partition(), message.offset())

    def _note(self, seq: int, error: KafkaError | None, partition: int | None, offset: int | None) -> None:
        self._outstanding.discard(seq)
        outcome: dict[str, Any] = {"topic": self._spec.topic, "seq": seq}
        if error is None:
            assert partition is not None and offset is not None
            outcome |= {"status": "acked", "partition": partition, "offset": offset}
            self.ends[partition] = max(self.ends.get(partition, 0), offset + 1)
            self._acknowledged += 1
        else:
            status = "failed" if error.code() in _REFUSED else "unknown"
            outcome |= {"status": status, "error": f"{error.name()}: {error.str()}"}
        self._outcomes.append(outcome)
        if len(self._outcomes) >= _LEDGER_ROWS:
            self._write_ledger()

    def _write_ledger(self) -> None:
        if self._outcomes:
            self._writer.append("sent", self._outcomes)
            self._outcomes = []

    def _give_up_outstanding(self) -> None:
        if not self._outstanding:
            self._write_ledger()
            return
        unknown = sorted(self._outstanding)
        self._outstanding.clear()
        self._outcomes += [
            {"topic": self._spec.topic, "seq": seq, "status": "unknown", "error": "no delivery report"}
            for seq in unknown
        ]
        self._write_ledger()
        raise ServiceFailed(
            f"{len(unknown)} records of {self._spec.topic} (from number {unknown[0]}) got neither an acknowledgement nor an "
            f"error from Kafka within {_CHUNK_DEADLINE_S:g} s, although the feed uses listeners that no fault cuts",
            hint="see the brokers' logs in the run directory",
        )
