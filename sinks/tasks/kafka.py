"""Write to a Kafka topic from Spark's tasks, effectively once, from ``foreachBatch``: one transaction per source partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import failpoints
from ..errors import SinkError
from ..kafka_records import RecordFormat
from ..kafka_transaction import TopicTransactions
from ..offsets import Checkpoint
from .lanes import Batch, Lanes, Written
from .plans import one_task_each
from .rows import SourceColumns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_REPORT = "topic string, partition string, rows bigint, skipped boolean"


class KafkaPartitioned:
    """A sink for ``df.writeStream.foreachBatch(sink)`` whose tasks write to ``topic``, each source partition in its own transaction.

    ``source`` names the columns with the place of each row in the input: partition and offset of the Kafka source, or topic,
    partition and offset if the query reads several topics. Rows become records as in `onceproof.sinks.kafka.KafkaTransactional`;
    ``value`` may leave these columns out.
    ``progress_topic`` must exist, must never expire, and needs as many partitions as the source topic with the most of them: the
    progress of source partition 3 is in partition 3. It may be shared by pipelines.
    ``pipeline`` is the logical name of the progress and of the transactional.ids: the same over restarts, for one query only.

    Assumes Kafka sources, synchronous micro-batches, a query without state (an aggregation, a deduplication or a join of streams
    is refused), and the same rows on each replay. A row comes from one input record, which may give several rows. For order within
    a source partition, also no shuffle: where the plan has one, the sink gathers the rows of each source partition by another
    shuffle, and sorts them by their offsets.

    Guarantees to readers with ``isolation.level=read_committed``: what a batch has of one source partition is visible completely or
    not at all, and once. A batch as a whole is not atomic: its source partitions become visible one by one, and if the driver crashes,
    some of them stay invisible until it runs again. A replayed batch writes only the source partitions that were not written.
    Attempts at one task, and drivers, fence each other by ``init_transactions``, and read the progress after it. A source partition
    that does not begin where its progress ends raises `OffsetGap`. The driver records the progress of source partitions of
    which no row is left after the query's filters, a transaction for each.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        pipeline: str,
        progress_topic: str,
        checkpoint: str | Path,
        source: Sequence[str],
        key: str | None = None,
        value: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        """``settings`` are those of `onceproof.sinks.kafka.KafkaTransactional`, without dead letters. Raises `SinkError`."""
        self._checkpoint = Checkpoint(checkpoint)
        own = {**settings, "pipeline": pipeline, "progress_topic": progress_topic}
        TopicTransactions(bootstrap, topic, **own)  # refuses wrong settings here, and not in a task
        self._lanes = Lanes(bootstrap, topic, SourceColumns(source), RecordFormat(topic, key, value), own)

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """Called by Spark. Runs one action on the frame."""
        batch = self._batch(batch_id)
        failpoints.reach("after-offset-log", sink="kafka", batch=batch_id, query_id=batch.query_id, phase="sink-entry")
        self._demand_columns(batch_df.columns)
        ranges = batch.ranges.by_partition()
        parts = sum(start < end for ends in ranges.values() for start, end in ends.values())
        if not one_task_each(batch_df, parts):
            names = self._lanes.source.names
            batch_df = batch_df.repartition(max(1, parts), *names[:-1]).sortWithinPartitions(*names)
        lanes, harness = self._lanes, failpoints.socket_path()

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            failpoints.join(harness)
            types = {"topic": pa.string(), "partition": pa.string(), "rows": pa.int64(), "skipped": pa.bool_()}
            found = list(lanes.write(batches, batch))
            columns = [pa.array([getattr(one, name) for one in found], each) for name, each in types.items()]
            yield pa.RecordBatch.from_arrays(columns, list(types))

        self._finish(batch, [Written(*row) for row in batch_df.mapInArrow(write, _REPORT).collect()])

    def write(self, rows: pa.Table, batch_id: int) -> bool:
        """Write rows that the driver has, as one task does. Returns whether any source partition was written."""
        batch = self._batch(batch_id)
        self._demand_columns(rows.column_names)
        found = list(self._lanes.write(rows.to_batches(max_chunksize=1024), batch))
        self._finish(batch, found)
        return any(not one.skipped for one in found)

    def _finish(self, batch: Batch, written: list[Written]) -> None:
        # Again: the first batch of a query with state makes the folder that shows that it has state.
        self._batch(batch.ranges.batch)
        self._lanes.settle(batch, written)

    def _batch(self, batch_id: int) -> Batch:
        return stateless(Batch(self._checkpoint.query_id(), self._checkpoint.ranges(batch_id)))

    def _demand_columns(self, names: Sequence[str]) -> None:
        self._lanes.record.demand_names(names)
        self._lanes.source.demand(names)


def stateless(batch: Batch) -> Batch:
    """``batch``, if its query has no state. Raises `SinkError`."""
    if batch.ranges.stateful:
        raise SinkError(
            f"batch {batch.ranges.batch} is of a query with state, whose rows may come from the input of other batches",
            hint="use KafkaTransactional, which writes each batch in one transaction",
        )
    return batch
