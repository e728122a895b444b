"""Write to a Kafka topic, effectively once, from ``foreachBatch``: one transaction per batch, one producer per transaction.

A producer is never reused. librdkafka uses version 1 of the transaction protocol, in which all transactions of a
producer share an epoch: an EndTxn that is delivered late then ends the *next* transaction (KAFKA-17754, KIP-890;
Jepsen's report on Bufstream 0.1.0), and writes are lost without an error. A new producer has a new epoch.
"""

from __future__ import annotations

import json
import reprlib
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from onceproof.sinks import failpoints
from onceproof.sinks.errors import CommitUnknown, SinkError
from onceproof.sinks.kafka_clients import SETTINGS
from onceproof.sinks.kafka_progress import PARTITION, ProgressReader
from onceproof.sinks.offsets import Checkpoint, Progress, Ranges, advanced, decide

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class KafkaTransactional:
    """A sink for ``df.writeStream.foreachBatch(sink)`` that writes each batch to ``topic`` in one transaction.

    Each row becomes one record: the column named ``key`` is the key, bytes as they are and anything else as UTF-8 text (NULL stays
    NULL; without ``key`` all keys are NULL). The columns named in ``value`` (default: all) are a JSON object, with nulls as null
    and timestamps in ISO 8601; a value that JSON lacks (NaN, infinity, bytes) raises `SinkError`.
    Records are sent in the order of the rows, to the partitions that Java's default partitioner chooses.
    ``progress_topic`` must exist, must never expire (compacted, or ``retention.ms=-1``), and may be shared by pipelines.
    ``pipeline`` is the logical name of the progress and of the transactional.id: the same over restarts, for one query only.
    ``config`` overrides settings of librdkafka: security, ``linger.ms`` or ``partitioner``, for example. Those that the guarantees
    depend on are refused.

    Assumes the same as `onceproof.sinks.postgres.PostgresAppend`: Kafka sources, synchronous micro-batches, the same
    rows in the same order on each replay, a batch that fits into the driver's memory, and for a stateful query its checkpoint
    (``rebuilds_state`` is described there too).

    Guarantees to readers with ``isolation.level=read_committed``: each batch is visible completely or not at all, and once. A
    replayed batch is skipped; a batch that does not begin where progress ends raises `OffsetGap`. Of two drivers, each batch fences
    the other's open transaction by ``init_transactions`` (KIP-98), whichever driver is newer: its commit fails, and because
    progress is read after that, no batch is written twice. A commit that times out is sent again, never aborted, up to
    ``commit_attempts`` times; after that, or after any other error, no client knows its outcome, and
    `CommitUnknown` ends the query: the replay reads the progress record.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        pipeline: str,
        progress_topic: str,
        checkpoint: str | Path,
        rebuilds_state: bool = False,
        key: str | None = None,
        value: Sequence[str] | None = None,
        transaction_timeout_s: float = 60.0,
        commit_timeout_s: float = 30.0,
        commit_attempts: int = 3,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._topic = topic
        self._pipeline = pipeline
        self._progress_topic = progress_topic
        self._checkpoint = Checkpoint(checkpoint)
        self._rebuilds_state = rebuilds_state
        self._query_id = ""
        self._key = key
        self._value = value
        self._timeout_s = transaction_timeout_s
        self._commit_timeout_s = commit_timeout_s
        self._commit_attempts = commit_attempts
        # The same over restarts, without pid or attempt, so that init_transactions of any other driver fences this producer.
        self._transactional_id = f"{pipeline}-0"
        self._settings = {"bootstrap.servers": bootstrap, **SETTINGS, "log_level": 3, **_allowed(config or {})}
        timeout_ms = int(transaction_timeout_s * 1000)
        self._producer_settings = {
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            **self._settings,
            "transactional.id": self._transactional_id,
            "transaction.timeout.ms": timeout_ms,
            # Shorter than the transaction's timeout: an undeliverable record fails before the broker aborts.
            "message.timeout.ms": timeout_ms * 4 // 5,
        }
        self._reader: ProgressReader | None = None

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """Called by Spark. Runs one action on the frame even if the batch is skipped, because stateful queries need it."""
        self._query_id = self._checkpoint.query_id()
        self._reach("after-offset-log", batch_id, phase="sink-entry")
        self.write(batch_df.toArrow(), batch_id)

    def write(self, rows: pa.Table, batch_id: int) -> bool:
        """Commit ``rows`` as batch ``batch_id``, unless progress covers it. Returns whether they were written."""
        # Read before the transaction: where checkpoints are remote, a read takes long, and may fail.
        query_id = self._query_id = self._checkpoint.query_id()
        ranges = self._checkpoint.ranges(batch_id)
        facts = {
            "transactional_id": self._transactional_id,
            "topic": self._topic,
            "progress_topic": self._progress_topic,
        }
        try:
            producer = Producer(self._producer_settings)
            # init_transactions must come first: it ends the transaction of the producer before, which may be another driver's,
            # and fences that producer. Only then is the progress that is read below final.
            producer.init_transactions(self._timeout_s)
            recorded = self._recorded()
            if decide(recorded, ranges, query_id, rebuilds_state=self._rebuilds_state) == "skip":
                self._report("skipped", batch_id)
                return False
            progress = Progress(query_id, batch_id, advanced(recorded, ranges))
            self._stage(producer, rows, progress)
            self._reach("before-sink-commit", batch_id, **facts)
            self._commit(producer, ranges)
        except Exception as error:
            self._report("attempt-failed", batch_id, error=type(error).__name__, message=str(error))
            raise
        self._report("committed", batch_id, **facts)
        self._reach("after-sink-commit", batch_id, **facts)
        return True

    def _recorded(self) -> Progress | None:
        if self._reader is None:
            self._reader = ProgressReader(
                self._settings, self._progress_topic, self._pipeline, timeout_s=self._timeout_s
            )
        return self._reader.last()

    def _stage(self, producer: Producer, rows: pa.Table, progress: Progress) -> None:
        """Begin the transaction, send every record of the batch, and wait for their acknowledgements. Abort on any error."""
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None and not failures:
                failures.append(error)

        producer.begin_transaction()
        try:
            for batch in rows.to_batches(max_chunksize=1024):
                for row in batch.to_pylist():
                    self._produce(producer, self._topic, *self._record(row), delivered)
            self._produce(producer, self._progress_topic, self._pipeline.encode(), progress.value(), delivered)
            unsent = producer.flush(self._timeout_s)
            if failures or unsent:
                reason = (
                    failures[0].str() if failures else f"{unsent} records not acknowledged in {self._timeout_s:g} s"
                )
                raise SinkError(
                    f"batch {progress.batch_id} was not delivered to {self._topic}: {reason}",
                    hint="the transaction is aborted; a restarted query replays the batch",
                )
        except BaseException:
            # Only so that readers need not wait for an open transaction. Safe, because no commit was sent in this epoch.
            with suppress(KafkaException):
                producer.abort_transaction(self._commit_timeout_s)
            raise

    def _produce(self, producer: Producer, topic: str, key: bytes | None, value: bytes, delivered: Any) -> None:
        deadline = time.monotonic() + self._timeout_s
        # -1: the partitioner chooses.
        partition = PARTITION if topic == self._progress_topic else -1
        while True:
            try:
                producer.produce(topic, value=value, key=key, partition=partition, on_delivery=delivered)
                return
            except BufferError:  # librdkafka's queue is full: wait for deliveries
                if time.monotonic() > deadline:
                    raise SinkError(f"the producer's queue was full for {self._timeout_s:g} s") from None
                producer.poll(0.1)

    def _record(self, row: dict[str, Any]) -> tuple[bytes | None, bytes]:
        try:
            key = row[self._key] if self._key is not None else None
            value = row if self._value is None else {name: row[name] for name in self._value}
        except KeyError as missing:
            raise SinkError(
                f"the batch has no column {missing.args[0]!r}, but {', '.join(row)}",
                hint="name columns of the batch as key and value of the sink",
            ) from None
        if key is not None and not isinstance(key, bytes):
            key = str(key).encode()
        try:
            return key, _json(value)
        except (TypeError, ValueError):
            raise self._not_json(value) from None

    def _not_json(self, row: dict[str, Any]) -> SinkError:
        """The error for the first column that cannot be written."""
        name = next(name for name, value in row.items() if not _has_json(value))
        return SinkError(
            f"column {name!r} of topic {self._topic!r} holds {reprlib.repr(row[name])}, which has no form in JSON",
            hint="replace NaN, infinity and bytes in the query (nanvl, when, base64), or cast the column to string",
        )

    def _commit(self, producer: Producer, ranges: Ranges) -> None:
        for attempt in range(1, self._commit_attempts + 1):
            try:
                producer.commit_transaction(self._commit_timeout_s)
                return
            except KafkaException as exception:
                error: KafkaError = exception.args[0]
                self._report("commit-failed", ranges.batch, error=error.name(), message=error.str(), attempt=attempt)
                # After a timeout, sending it again gives the true result. Any other error is indefinite, also one that
                # librdkafka calls abortable, and an abort now could arrive late, after a commit that was applied.
                if error.retriable() and attempt < self._commit_attempts:
                    continue
                raise CommitUnknown(
                    f"the commit of batch {ranges.batch} of pipeline {self._pipeline!r} got no clear answer: {error.str()}",
                    hint="restart the query: the replayed batch is skipped if the commit was applied",
                ) from exception

    def _reach(self, point: str, batch_id: int, **facts: Any) -> None:
        failpoints.reach(point, sink="kafka", batch=batch_id, query_id=self._query_id, **facts)

    def _report(self, event: str, batch_id: int, **facts: Any) -> None:
        failpoints.report(event, sink="kafka", batch=batch_id, query_id=self._query_id, **facts)


#: Settings of librdkafka -> the sink's own setting that decides it. None: exactly-once depends on the sink's value.
_NOT_IN_CONFIG: dict[str, str | None] = {
    "bootstrap.servers": "bootstrap",
    "metadata.broker.list": "bootstrap",
    "transactional.id": "pipeline",
    "transaction.timeout.ms": "transaction_timeout_s",
    "message.timeout.ms": "transaction_timeout_s",
    "delivery.timeout.ms": "transaction_timeout_s",
    "enable.idempotence": None,
    "isolation.level": None,
    "group.id": None,
    "enable.auto.commit": None,
    "enable.partition.eof": None,
    "auto.offset.reset": None,
}


def _allowed(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in config:
        if name in _NOT_IN_CONFIG:
            own = _NOT_IN_CONFIG[name]
            raise SinkError(
                f"config must not set {name!r}: the sink does",
                hint=f"give it as {own}" if own else "leave it out: exactly-once depends on it",
            )
    return config


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=_plain, allow_nan=False).encode()


def _has_json(value: Any) -> bool:
    try:
        _json(value)
    except (TypeError, ValueError):
        return False
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
