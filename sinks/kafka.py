"""Write to a Kafka topic, effectively once, from ``foreachBatch``: one transaction per batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import RecordRefused, SinkError
from .kafka_dead_letters import DeadLetterTopic
from .kafka_records import Addressed, RecordFormat
from .kafka_transaction import TopicTransactions
from .offsets import Checkpoint, Progress, Ranges, advanced, decide

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Producer
    from pyspark.sql import DataFrame


class KafkaTransactional(TopicTransactions):
    """A sink for ``df.writeStream.foreachBatch(sink)`` that writes each batch to ``topic`` in one transaction.

    Each row becomes one record: the column named ``key`` is the key, bytes as they are and anything else as UTF-8 text (NULL stays
    NULL; without ``key`` all keys are NULL). The columns named in ``value`` (default: all) are a JSON object, with nulls as null
    and timestamps in ISO 8601; a value that JSON lacks (NaN, infinity, bytes) raises `SinkError`.
    Records are sent in the order of the rows, to the partitions that Java's default partitioner chooses.
    ``progress_topic`` must exist, must never expire (compacted, or ``retention.ms=-1``), and may be shared by pipelines.
    ``pipeline`` is the logical name of the progress and of the transactional.id: the same over restarts, for one query only.
    ``config`` overrides settings of librdkafka: security, ``linger.ms`` or ``partitioner``, for example. Those that the guarantees
    depend on are refused.

    ``dead_letters`` names a topic, which must exist and must not be compacted. Records that the sink refuses then go there, in the
    same transaction, as JSON with the row, its batch's source and the reason; the others are written. These are rows that JSON lacks
    a form for, records without a key if ``topic`` is compacted, and those larger, before compression, than ``message.max.bytes`` of
    ``config`` or ``max.message.bytes`` of ``topic``. The sink reads the settings of both topics before each batch, for which its user
    needs the right to describe them; without it, only ``message.max.bytes`` counts. Without ``dead_letters``, such a record fails the
    batch; with them, a record that only the broker refuses does so as well.

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
        dead_letters: str | None = None,
        key: str | None = None,
        value: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        """``settings`` are those of `TopicTransactions`: timeouts, ``commit_attempts`` and ``config``. Raises `SinkError`."""
        super().__init__(bootstrap, topic, pipeline=pipeline, progress_topic=progress_topic, **settings)
        self._checkpoint = Checkpoint(checkpoint)
        self._rebuilds_state = rebuilds_state
        self._record = RecordFormat(topic, key, value)
        self._dead_letters: DeadLetterTopic | None = None
        if dead_letters is not None:
            if dead_letters in (topic, progress_topic):
                own = "writes its records to" if dead_letters == topic else "keeps its progress in"
                raise SinkError(
                    f"dead_letters names topic {dead_letters!r}, which this sink {own}",
                    hint="create another topic for dead letters",
                )
            self._dead_letters = DeadLetterTopic(
                self._settings, topic, dead_letters, pipeline, timeout_s=self._timeout_s
            )

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

        def plan(recorded: Progress | None) -> tuple[Iterator[Addressed], Progress] | None:
            if decide(recorded, ranges, query_id, rebuilds_state=self._rebuilds_state) == "skip":
                return None
            return self._records(rows, ranges), Progress(query_id, batch_id, advanced(recorded, ranges))

        return self._write(plan, batch_id)

    def _producer(self) -> Producer:
        if self._dead_letters is not None:
            self._dead_letters.read_limits()
            self._producer_settings = {**self._producer_settings, "batch.size": self._dead_letters.batch_bytes()}
        return super()._producer()

    def _records(self, rows: pa.Table, ranges: Ranges) -> Iterator[Addressed]:
        self._record.demand_names(rows.column_names)
        number = 0
        for batch in rows.to_batches(max_chunksize=1024):
            for row in batch.to_pylist():
                yield self._addressed(row, number, ranges)
                number += 1

    def _addressed(self, row: dict[str, Any], number: int, ranges: Ranges) -> Addressed:
        """The record of a row, or its dead letter."""
        if self._dead_letters is None:
            return self._topic, *self._record(row)
        try:
            return self._topic, *self._dead_letters.fitting(self._record(row))
        except RecordRefused as refused:
            return self._dead_letters.letter(self._query_id, ranges, number, row, refused)
