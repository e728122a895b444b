"""One transaction on a Kafka topic, with the records of a batch and their progress: one producer per transaction.

A producer is never reused. librdkafka uses version 1 of the transaction protocol, in which all transactions of a
producer share an epoch: an EndTxn that is delivered late then ends the *next* transaction (KAFKA-17754, KIP-890;
Jepsen's report on Bufstream 0.1.0), and writes are lost without an error. A new producer has a new epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from . import failpoints
from ._lazy import confluent_kafka
from .errors import CommitUnknown, SinkError
from .kafka_clients import SETTINGS
from .kafka_progress import PARTITION, ProgressReader
from .kafka_records import Addressed
from .offsets import Progress

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

Plan = Callable[[Progress | None], tuple[Iterable[Addressed], Progress] | None]
"""From the recorded progress to what the transaction writes, and the progress after it; None if there is nothing to write."""


class TopicTransactions:
    """Writes batches to ``topic`` with one transactional.id. For the settings see `onceproof.sinks.kafka.KafkaTransactional`."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        pipeline: str,
        progress_topic: str,
        progress_partition: int = PARTITION,
        transaction_timeout_s: float = 60.0,
        commit_timeout_s: float = 30.0,
        commit_attempts: int = 3,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises `SinkError` for a setting in ``config`` that the guarantees depend on."""
        self._topic = topic
        self._pipeline = pipeline
        self._progress_topic = progress_topic
        self._progress_partition = progress_partition
        self._query_id = ""
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

    def _write(self, plan: Plan, batch_id: int) -> bool:
        """Write what ``plan`` makes of the recorded progress, in one transaction. Returns whether there was anything to write."""
        facts = {
            "transactional_id": self._transactional_id,
            "topic": self._topic,
            "progress_topic": self._progress_topic,
        }
        try:
            producer = self._producer()
            # init_transactions must come first: it ends the transaction of the producer before, which may be another driver's,
            # and fences that producer. Only then is the progress that is read below final.
            producer.init_transactions(self._timeout_s)
            recorded = self._recorded()
            planned = plan(recorded)
            if planned is None:
                self._report("skipped", batch_id)
                return False
            self._stage(producer, *planned)
            self._reach("before-sink-commit", batch_id, **facts)
            self._commit(producer, batch_id)
        except Exception as error:
            self._report("attempt-failed", batch_id, error=type(error).__name__, message=str(error))
            raise
        self._report("committed", batch_id, **facts)
        self._reach("after-sink-commit", batch_id, **facts)
        return True

    def _producer(self) -> Producer:
        return confluent_kafka.Producer(self._producer_settings)

    def _recorded(self) -> Progress | None:
        if self._reader is None:
            self._reader = ProgressReader(
                self._settings,
                self._progress_topic,
                self._pipeline,
                timeout_s=self._timeout_s,
                partition=self._progress_partition,
            )
        return self._reader.last()

    def _stage(self, producer: Producer, records: Iterable[Addressed], progress: Progress) -> None:
        """Begin the transaction, send every record of the batch, and wait for their acknowledgements. Abort on any error."""
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None and not failures:
                failures.append(error)

        producer.begin_transaction()
        try:
            for topic, key, value in records:
                self._produce(producer, topic, key, value, delivered)
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
            with suppress(confluent_kafka.KafkaException):
                producer.abort_transaction(self._commit_timeout_s)
            raise

    def _produce(self, producer: Producer, topic: str, key: bytes | None, value: bytes, delivered: Any) -> None:
        deadline = time.monotonic() + self._timeout_s
        # -1: the partitioner chooses.
        partition = self._progress_partition if topic == self._progress_topic else -1
        while True:
            try:
                producer.produce(topic, value=value, key=key, partition=partition, on_delivery=delivered)
                return
            except BufferError:  # librdkafka's queue is full: wait for deliveries
                if time.monotonic() > deadline:
                    raise SinkError(f"the producer's queue was full for {self._timeout_s:g} s") from None
                producer.poll(0.1)

    def _commit(self, producer: Producer, batch_id: int) -> None:
        for attempt in range(1, self._commit_attempts + 1):
            try:
                producer.commit_transaction(self._commit_timeout_s)
                return
            except confluent_kafka.KafkaException as exception:
                error: KafkaError = exception.args[0]
                self._report("commit-failed", batch_id, error=error.name(), message=error.str(), attempt=attempt)
                # After a timeout, sending it again gives the true result. Any other error is indefinite, also one that
                # librdkafka calls abortable, and an abort now could arrive late, after a commit that was applied.
                if error.retriable() and attempt < self._commit_attempts:
                    continue
                raise CommitUnknown(
                    f"the commit of batch {batch_id} of pipeline {self._pipeline!r} got no clear answer: {error.str()}",
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
