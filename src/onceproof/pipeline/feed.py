"""Feeds an input topic from its data set, in chunks, and keeps a ledger of what became of each record."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from onceproof.base.errors import ServiceFailed
from onceproof.base.timeline import Timeline
from onceproof.data import Dataset, Record
from onceproof.scenario.model import InputSpec
from onceproof.stack.kafka.clients import client_config

_LEDGER_ROWS = 4096
#: librdkafka's RD_KAFKA_PARTITION_UA: the partitioner chooses.
_BY_KEY = -1
_CHUNK_DEADLINE_S = 120.0
_MESSAGE_TIMEOUT_S = 60.0

# The broker, or librdkafka before sending, refused the record: it is certainly not in the log. After any other error
# (a time-out, a lost connection) it may be.
_REFUSED = frozenset(
    {
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
)


class Ledger(Protocol):
    """Where fates are written: the part of the history writer that the feed uses."""

    def append(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None: ...


class Feeder:
    """Sends one input's records, chunk after chunk, through the harness's own listeners, which no fault cuts.

    The producer is idempotent with ``acks=all``, so the log holds each record once and in order within its partition.
    Keys go to partitions as Java's default partitioner chooses (murmur2), NULL keys in turn.
    """

    def __init__(
        self, kafka_bootstrap: str, dataset: Dataset, spec: InputSpec, writer: Ledger, timeline: Timeline
    ) -> None:
        self._dataset = dataset
        self._spec = spec
        self._writer = writer
        self._timeline = timeline
        self.rows = dataset.rows() if spec.rows is None else spec.rows
        self.ends: dict[int, int] = dict.fromkeys(range(spec.partitions), 0)
        """Partition -> end offset (exclusive) of what was acknowledged so far."""
        self._fates: list[dict[str, Any]] = []
        self._outstanding: set[int] = set()
        self._acknowledged = 0
        self._producer = Producer(
            {
                **client_config(kafka_bootstrap),
                "enable.idempotence": True,
                "acks": "all",
                "partitioner": "murmur2_random",
                "message.timeout.ms": int(_MESSAGE_TIMEOUT_S * 1000),
                "linger.ms": 5,
                # What may wait in memory at once, whatever the size of a chunk.
                "queue.buffering.max.messages": 20_000,
                "queue.buffering.max.kbytes": 32_768,
            }
        )

    def chunk(self, index: int) -> tuple[int, int]:
        """The records [start, stop) of chunk ``index``, counted from 0; chunks differ by one record at most."""
        return self.rows * index // self._spec.chunks, self.rows * (index + 1) // self._spec.chunks

    def warm_up(self) -> None:
        """Have the data set loaded: done while the job starts, it costs the run no time."""
        next(self._dataset.records(0, 1), None)

    def send_chunk(self, index: int, *, stopping: threading.Event | None = None) -> dict[int, int]:
        """Send chunk ``index`` and wait for every record's fate. Returns `ends`.

        ``stopping`` ends the chunk early, between two records. Raises `ServiceFailed` if records are still without a
        fate at the deadline: those stand in the ledger as unknown.
        """
        start, stop = self.chunk(index)
        deadline = time.monotonic() + _CHUNK_DEADLINE_S
        for seq, record in enumerate(self._dataset.records(start, stop), start):
            if stopping is not None and stopping.is_set():
                break
            self._send(seq, record, deadline)
        # librdkafka gives each record up after its own time-out, so this ends earlier unless the process is starved.
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
        """Write what the ledger still holds. Idempotent."""
        self._producer.flush(5)
        self._write_ledger()

    def _send(self, seq: int, record: Record, deadline: float) -> None:
        self._outstanding.add(seq)
        # A record with a key stands where its key says. One without is dealt out by its number, so that each run of a
        # scenario has the same record at the same offset.
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
            except BufferError:  # the queue is full: let acknowledgements make room
                if time.monotonic() > deadline:
                    self._give_up_outstanding()
                self._producer.poll(0.1)
            except KafkaException as error:
                self._note(seq, error.args[0], None, None)
                break
        self._producer.poll(0)

    def _delivered(self, seq: int, error: KafkaError | None, message: Message) -> None:
        """Called by librdkafka from within poll and flush, once a record."""
        self._note(seq, error, message.partition(), message.offset())

    def _note(self, seq: int, error: KafkaError | None, partition: int | None, offset: int | None) -> None:
        self._outstanding.discard(seq)
        fate: dict[str, Any] = {"topic": self._spec.topic, "seq": seq}
        if error is None:
            assert partition is not None and offset is not None
            fate |= {"status": "acked", "partition": partition, "offset": offset}
            self.ends[partition] = max(self.ends.get(partition, 0), offset + 1)
            self._acknowledged += 1
        else:
            status = "failed" if error.code() in _REFUSED else "unknown"
            fate |= {"status": status, "error": f"{error.name()}: {error.str()}"}
        self._fates.append(fate)
        if len(self._fates) >= _LEDGER_ROWS:
            self._write_ledger()

    def _write_ledger(self) -> None:
        if self._fates:
            self._writer.append("sent", self._fates)
            self._fates = []

    def _give_up_outstanding(self) -> None:
        if not self._outstanding:
            self._write_ledger()
            return
        lost = sorted(self._outstanding)
        self._outstanding.clear()
        self._fates += [
            {"topic": self._spec.topic, "seq": seq, "status": "unknown", "error": "no delivery report"} for seq in lost
        ]
        self._write_ledger()
        raise ServiceFailed(
            f"{len(lost)} records of {self._spec.topic} (from number {lost[0]}) got no answer from Kafka in "
            f"{_CHUNK_DEADLINE_S:g} s, though the feed uses listeners that no fault cuts",
            hint="see the brokers' logs in the run directory",
        )
