"""Writes to a Kafka topic from tasks: one transaction per source partition and batch, with the progress of this partition in it.

A lane is one source partition: it has its own transactional.id and its own progress, the offset up to which it is written. So no
number of a task, of an attempt or of a batch decides what is written, and a lane needs nothing of the other lanes.

Two tasks with rows of one lane would break that: the second would find the progress of the first, and skip its own rows. So the
progress also has a checksum of the offsets of the batch's rows, and a lane is skipped in silence only if the rows are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import SinkError
from ..kafka_progress import ProgressReader
from ..kafka_records import Addressed, RecordFormat
from ..kafka_transaction import TopicTransactions
from ..offsets import Progress, Ranges, advanced, decide
from .rows import Checksum, Place, SourceColumns, by_place, offset_of

if TYPE_CHECKING:
    import pyarrow as pa


#: The readers of a thread. A process of Spark's runs one task at a time, in one thread.
_kept = threading.local()


class RowsDiffer(SinkError):
    """A source partition was already written for this batch, with other rows: it is in several tasks, or the replay differs."""


@dataclass(frozen=True)
class Batch:
    """What tasks need to know of a batch; pickled with them."""

    query_id: str
    ranges: Ranges


@dataclass(frozen=True)
class Written:
    """What a task did with the rows of one place."""

    topic: str
    partition: str
    rows: int
    skipped: bool


@dataclass(frozen=True)
class _Counted(Progress):
    """Progress whose rows are counted while they are sent: its value is complete when all of them are."""

    sent: Checksum = field(default_factory=Checksum)

    def value(self) -> bytes:
        return Progress(self.query_id, self.batch_id, self.offsets, str(self.sent)).value()


class Lane(TopicTransactions):
    """The transactions of one source partition."""

    def __init__(
        self, place: Place, bootstrap: str, topic: str, record: RecordFormat, offset: str, settings: Mapping[str, Any]
    ) -> None:
        source, partition = place
        own = dict(settings)
        # A topic has no slash in its name: no two lanes have one name.
        pipeline = f"{own.pop('pipeline')}/{source}/{partition}"
        # A partition of the progress topic for each lane: readers of progress wait for transactions that are open in theirs.
        super().__init__(bootstrap, topic, pipeline=pipeline, progress_partition=int(partition), **own)
        self._place = place
        self._record = record
        self._offset = offset

    def write(self, rows: Iterable[pa.RecordBatch], batch: Batch) -> Written:
        """Commit the rows, unless progress covers them. Raises `RowsDiffer`, other `SinkError` or `KafkaException`."""
        self._query_id = batch.query_id
        ranges, sent = batch.ranges.of(*self._place), Checksum()
        records, found = self._records(rows, ranges, sent), list[Progress]()

        def plan(recorded: Progress | None) -> tuple[Iterator[Addressed], Progress] | None:
            # A partition that is new in this batch has no progress yet, whatever the number of the batch.
            is_new = recorded is None and not ranges.start
            if not is_new and decide(recorded, ranges, batch.query_id) == "skip":
                found.extend([recorded] if recorded is not None else [])
                return None
            return records, _Counted(batch.query_id, ranges.batch, advanced(recorded, ranges), sent=sent)

        written = self._write(plan, ranges.batch)
        if not written:
            for _ in records:  # to count them
                pass
            self._demand_same(found, ranges, batch.query_id, sent)
        return Written(*self._place, sent.rows, not written)

    def _recorded(self) -> Progress | None:
        """With one reader for all lanes, kept between the tasks of a process: its clients take longer to connect than to read."""
        known: dict[str, ProgressReader] = _kept.__dict__
        of = repr((self._progress_topic, sorted(self._settings.items()), self._timeout_s))
        if of not in known:
            known[of] = ProgressReader(self._settings, self._progress_topic, self._pipeline, timeout_s=self._timeout_s)
        known[of].turn_to(self._progress_partition, self._pipeline)
        return known[of].last()

    def _records(self, batches: Iterable[pa.RecordBatch], ranges: Ranges, sent: Checksum) -> Iterator[Addressed]:
        for batch in batches:
            for part in range(0, batch.num_rows, 1024):
                for row in batch.slice(part, 1024).to_pylist():
                    sent.add(offset_of(row, self._offset, ranges))
                    yield self._topic, *self._record(row)

    def _demand_same(self, found: list[Progress], ranges: Ranges, query_id: str, rows: Checksum) -> None:
        """Of a later batch, or another checkpoint, it is not known which rows were written."""
        for recorded in found:
            is_this = (recorded.query_id, recorded.batch_id) == (query_id, ranges.batch)
            if is_this and recorded.rows not in (None, str(rows)):
                raise RowsDiffer(
                    f"batch {ranges.batch} has {rows.rows} rows of {'/'.join(self._place)} in this task, but other rows of it were "
                    f"committed for this batch ({recorded.rows} and {rows}: count and checksum of the offsets)",
                    hint="either several tasks have rows of one source partition: repartition by the columns in source; or the "
                    "replay of the batch has other rows: its query must not depend on a clock, rand() or uuid()",
                )


@dataclass(frozen=True)
class Lanes:
    """How tasks write, and the driver after them; pickled with the tasks."""

    bootstrap: str
    topic: str
    source: SourceColumns
    record: RecordFormat
    settings: Mapping[str, Any]
    """Of `TopicTransactions`."""

    def write(self, batches: Iterable[pa.RecordBatch], batch: Batch) -> Iterator[Written]:
        """Write the rows of a task, place by place."""
        topic = self.source.only_topic(batch.ranges)
        for place, rows in by_place(self.source.parts(batches, topic)):
            self._demand_read(place, batch.ranges)
            yield self._lane(place).write(rows, batch)

    def settle(self, batch: Batch, written: Iterable[Written]) -> None:
        """Record the progress of places of which no task has a row, after all tasks. Otherwise their next batch would be a gap."""
        done = {(one.topic, one.partition) for one in written}
        for topic, partitions in batch.ranges.by_partition().items():
            for partition, (start, end) in partitions.items():
                is_first = batch.ranges.batch == 0 or partition not in batch.ranges.start.get(topic, {})
                if (topic, partition) not in done and (start < end or is_first):
                    self._lane((topic, partition)).write([], batch)

    def _lane(self, place: Place) -> Lane:
        return Lane(place, self.bootstrap, self.topic, self.record, self.source.offset, self.settings)

    def _demand_read(self, place: Place, ranges: Ranges) -> None:
        topic, partition = place
        if partition not in ranges.end.get(topic, {}):
            known = sorted(f"{name}/{each}" for name, ends in ranges.end.items() for each in ends)
            raise SinkError(
                f"a row of batch {ranges.batch} names {topic}/{partition} as its source, but the batch reads {', '.join(known)}",
                hint="source must name columns with the place of each row in the input, as the Kafka source gives them",
            )
