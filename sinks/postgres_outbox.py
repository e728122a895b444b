"""Append to a Postgres table and publish the same rows to a Kafka topic, effectively once, from ``foreachBatch``.

The two systems cannot commit in one step. So one Postgres transaction commits the rows, an *entry* per row in the outbox, and the
progress; then one Kafka transaction publishes the entries and records up to which position they are published; then they are
deleted. Positions of entries are never used again: a driver that finds entries in the outbox publishes those after the recorded
position, and deletes the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._lazy import psycopg, sql
from .errors import OffsetGap, SinkError
from .kafka_records import Addressed, Record, RecordFormat, RecordLimits
from .kafka_transaction import TopicTransactions
from .offsets import Progress
from .postgres import PostgresAppend, cut_after
from .postgres_copy import copy_rows

if TYPE_CHECKING:
    import pyarrow as pa

#: Entries that are read or encoded at a time.
_PAGE = 1024

_CREATE_ENTRIES = """
CREATE TABLE IF NOT EXISTS {} (
  pipeline text,
  position bigint,
  key bytea,
  value text NOT NULL,
  PRIMARY KEY (pipeline, position)
)"""

_CREATE_ENDS = """
CREATE TABLE IF NOT EXISTS {} (
  pipeline text PRIMARY KEY,
  position bigint NOT NULL
)"""


class PostgresOutbox(PostgresAppend):
    """A sink for ``df.writeStream.foreachBatch(sink)`` that appends each batch to ``table`` and publishes it to ``topic``.

    Each row becomes one record, as `onceproof.sinks.kafka.KafkaTransactional` makes it from ``key`` and ``value``; ``progress_topic``
    and ``topic_settings`` (timeouts, ``commit_attempts``, ``config``) are those of that sink too. Other ``settings`` are
    those of `PostgresAppend`. ``outbox_table`` and ``outbox_table``\\ ``_end`` are created if they do not exist; pipelines may
    share them.

    Assumes the same as both sinks. Also: nobody changes the outbox; ``synchronous_commit`` is not ``off`` and a failover of Postgres
    loses no commit, because a published record cannot be taken back.

    Guarantees what `PostgresAppend` does for the table, and to readers of the topic with ``isolation.level=read_committed``: each
    batch is visible completely or not at all, once, after it is in the table, and in the order of the rows for each key. If
    publishing fails, the query ends; the next start publishes first. An outbox that does not fit the recorded position
    raises `OffsetGap` before anything is written.
    """

    def __init__(
        self,
        conninfo: str,
        table: str,
        bootstrap: str,
        topic: str,
        *,
        pipeline: str,
        checkpoint: str | Path,
        progress_topic: str,
        key: str | None = None,
        value: Sequence[str] | None = None,
        outbox_table: str = "onceproof_outbox",
        topic_settings: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        """Raises `psycopg.Error`, and `SinkError` for settings that the guarantees exclude."""
        self._outbox = sql.Identifier(*outbox_table.split("."))
        self._ends = sql.Identifier(*f"{outbox_table}_end".split("."))
        self._to = OutboxTopic(
            bootstrap, topic, outbox_table, pipeline=pipeline, progress_topic=progress_topic, **(topic_settings or {})
        )
        self._record = RecordFormat(topic, key, value)
        self._is_checked = False
        """Whether what was left in the outbox at the start is published."""
        super().__init__(conninfo, table, pipeline=pipeline, checkpoint=checkpoint, **settings)

    def write(self, rows: pa.Table, batch_id: int) -> bool:
        """Commit ``rows`` as batch ``batch_id``, unless progress covers it, and publish. Returns whether they were committed."""
        if not self._is_checked:
            # Before anything is written: an outbox that was restored from a backup would give away published positions again.
            self.publish(batch_id)
            self._is_checked = True
        written = super().write(rows, batch_id)
        self.publish(batch_id)
        return written

    def publish(self, batch_id: int) -> int:
        """Publish and delete the pipeline's entries. Returns how many records were published. ``batch_id`` is recorded with them.

        `write` does it. Raises `OffsetGap`, `CommitUnknown`, `SinkError`, `KafkaException` or `psycopg.Error`: call it again.
        """
        self._query_id = self._checkpoint.query_id()
        with closing(self._connect()) as connection:
            connection.autocommit = True
            entries = _Entries(connection, self._outbox, self._ends, self._pipeline, self._write_timeout_s)
            return self._to.publish(entries, self._query_id, batch_id)

    def _tables(self) -> list[sql.Composed]:
        return [
            *super()._tables(),
            sql.SQL(_CREATE_ENTRIES).format(self._outbox),
            sql.SQL(_CREATE_ENDS).format(self._ends),
        ]

    def _connect(self) -> psycopg.Connection[Any]:
        connection = super()._connect()
        ((durable,),) = connection.execute("SHOW synchronous_commit").fetchall()
        connection.commit()
        if durable == "off":
            connection.close()
            raise SinkError(
                "synchronous_commit is off: Postgres could lose a batch that is already published",
                hint="set synchronous_commit to on for this user: ALTER ROLE ... SET synchronous_commit = on",
            )
        return connection

    def _put(self, connection: psycopg.Connection[Any], rows: Any) -> None:
        super()._put(connection, rows)
        # The pipeline's row of progress is locked, so positions rise in the order of the commits: who reads the outbox sees no
        # entry before all earlier ones.
        reserve = sql.SQL(
            "INSERT INTO {0} AS e (pipeline, position) VALUES (%s, %s)"
            " ON CONFLICT (pipeline) DO UPDATE SET position = e.position + EXCLUDED.position RETURNING position"
        ).format(self._ends)
        ((end,),) = connection.execute(reserve, (self._pipeline, rows.num_rows)).fetchall()
        entries = self._entries(rows, end - rows.num_rows)
        copy_rows(connection, self._outbox, _schema(), entries)

    def _entries(self, rows: pa.Table, position: int) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # costs 0.1 s, which a job without this sink should not pay

        for batch in rows.to_batches(max_chunksize=_PAGE):
            records = [self._to.fitting(self._record(row)) for row in batch.to_pylist()]
            columns = [
                pa.repeat(self._pipeline, len(records)),
                pa.array(range(position, position + len(records)), pa.int64()),
                # As the text of a bytea: Arrow writes text faster than Python writes bytes.
                pa.array([None if key is None else f"\\x{key.hex()}" for key, _ in records], pa.string()),
                pa.array([value.decode() for _, value in records], pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_schema())
            position += len(records)


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema({"pipeline": pa.string(), "position": pa.int64(), "key": pa.string(), "value": pa.string()})


@dataclass(frozen=True)
class _Entries:
    """The entries of one pipeline, on one connection with autocommit."""

    connection: psycopg.Connection[Any]
    outbox: sql.Identifier
    ends: sql.Identifier
    pipeline: str
    timeout_s: float

    def end(self) -> int:
        """How many entries the pipeline ever wrote: the position of the next one."""
        find = sql.SQL("SELECT position FROM {} WHERE pipeline = %s").format(self.ends)
        rows = self._ask(find, self.pipeline)
        return int(rows[0][0]) if rows else 0

    def records(self, start: int, end: int) -> Iterator[Record]:
        """The records of all entries from ``start``, in order. Raises `OffsetGap`, after the last one, if there are others."""
        page = sql.SQL(
            "SELECT position, key, value FROM {} WHERE pipeline = %s AND position >= %s ORDER BY position LIMIT {}"
        ).format(self.outbox, sql.Literal(_PAGE))
        found, position = 0, start
        while rows := self._ask(page, self.pipeline, position):
            for _, key, value in rows:
                yield key, value.encode()
            found += len(rows)
            position = rows[-1][0] + 1
        if found != end - start:
            raise OffsetGap(
                f"the entries [{start}, {end}) of pipeline {self.pipeline!r} are not published, and the outbox has {found} of them",
                hint="if another driver of the pipeline runs, it has published them: stop one of the two. Otherwise entries were "
                "deleted, or the outbox and the progress topic do not belong together (a restored backup?): restore the one "
                "that was changed, or start with a new pipeline name and output",
            )

    def delete(self, end: int) -> None:
        delete = sql.SQL("DELETE FROM {} WHERE pipeline = %s AND position < %s").format(self.outbox)
        self._ask(delete, self.pipeline, end)

    def _ask(self, statement: sql.Composed, *values: Any) -> list[Any]:
        with cut_after(self.connection, self.timeout_s):
            cursor = self.connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []


class OutboxTopic(TopicTransactions):
    """Publishes entries. Its progress is that of a source: the outbox is a log with one partition, read up to a position."""

    def __init__(self, bootstrap: str, topic: str, outbox_table: str, **settings: Any) -> None:
        """``settings`` are those of `TopicTransactions`. Raises `SinkError`."""
        super().__init__(bootstrap, topic, **settings)
        self._source = outbox_table
        self._limits = RecordLimits.of_producer(topic, self._settings)

    def fitting(self, record: Record) -> Record:
        """``record``, if a producer takes it. Raises `RecordRefused` before the batch is committed: later, it could not be published."""
        return self._limits.fitting(record)

    def publish(self, entries: _Entries, query_id: str, batch_id: int) -> int:
        """Publish all ``entries`` after the recorded position, and delete all published ones. Returns the number of records."""
        self._query_id = query_id
        count = end = 0

        def plan(recorded: Progress | None) -> tuple[Iterator[Addressed], Progress] | None:
            nonlocal count, end
            start = self._published(recorded)
            end = entries.end()
            count = end - start
            if count == 0:
                return None
            records = ((self._topic, *record) for record in entries.records(start, end))
            return records, Progress(query_id, batch_id, {self._source: {"0": end}})

        self._write(plan, batch_id)
        entries.delete(end)
        return count

    def _published(self, recorded: Progress | None) -> int:
        if recorded is None:
            return 0
        if self._source not in recorded.offsets:
            raise OffsetGap(
                f"the progress of pipeline {self._pipeline!r} in {self._progress_topic} is that of {', '.join(recorded.offsets)}, "
                f"not of the outbox {self._source}",
                hint="use a pipeline name that no other sink has, and the same outbox_table at every start",
            )
        return recorded.offsets[self._source]["0"]
