"""Append to a Postgres table, or keep one row per key in it, effectively once, from ``foreachBatch``.

Each batch is one transaction with the rows *and* the progress, and the transaction locks the progress row before anything
else. A driver that lost the answer to its COMMIT needs no special code: the replay locks the row, reads the committed progress,
and skips or writes. The lock, not the check, prevents a late COMMIT of a predecessor from writing a batch twice.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import failpoints
from ._lazy import psycopg, sql
from .dead_letters import DeadLetters, put_accepted
from .errors import CommitUnknown, Fenced, SinkError
from .offsets import Checkpoint, Progress, Ranges, advanced, decide
from .postgres_copy import copy_rows, tuples

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from typing_extensions import LiteralString

# SQLSTATEs of a server that goes away: the COMMIT may have been applied nevertheless.
_UNKNOWN_AT_COMMIT = ("57P01", "57P02", "57P03")

_CHUNK = 1024
"""Rows that are converted at a time."""

Merge = Literal["sum", "min", "max"]

# If one side is NULL, the result is the other side; Postgres' greatest and least already do that.
_MERGED: dict[Merge, LiteralString] = {
    "sum": "coalesce(held.{0} + EXCLUDED.{0}, held.{0}, EXCLUDED.{0})",
    "min": "least(held.{0}, EXCLUDED.{0})",
    "max": "greatest(held.{0}, EXCLUDED.{0})",
}

_CREATE_PROGRESS = """
CREATE TABLE IF NOT EXISTS {} (
  pipeline text PRIMARY KEY,
  epoch bigint NOT NULL,
  query_id text,
  batch_id bigint,
  offsets jsonb
)"""


class PostgresAppend:
    """A sink for ``df.writeStream.foreachBatch(sink)`` that appends each batch to ``table`` exactly once.

    ``conninfo`` is a libpq URI or string; put the password into a passfile. The table must exist; columns are matched by name.
    ``pipeline`` is the logical name under which progress is stored: it must stay the same over restarts and be used by one
    query only, and it outlives the checkpoint. ``checkpoint`` is the query's ``checkpointLocation``.

    Assumes: Kafka sources only; micro-batches in the default, synchronous mode (asynchronous progress tracking and
    real-time mode do not tie a batch to an offset range); the same rows whenever a batch is replayed, so no ``rand()``,
    ``uuid()`` or clock in them; for order within each source partition, one task per partition and no shuffle
    (``minPartitions`` unset, ``spark.sql.adaptive.streaming.stateless.enabled=false``). A batch must fit into the
    driver's memory.

    A stateful query must keep its checkpoint: with another one than that of the recorded progress, each batch raises `OffsetGap`,
    because the rows that state emits when the watermark moves depend on the former batches. ``rebuilds_state`` accepts another
    one. Use it only if each row is emitted by the batch that reads its input (update mode, deduplication or inner joins; no
    windows in append mode, outer joins or timeouts), no record comes too late, and the query then reads the input from its start.

    ``dead_letters`` names a table, which is created if it does not exist. Rows that the database refuses (a value that does not fit
    its column, a broken constraint) then go there, in the same transaction, with their batch's source and the reason; the others are
    written. Without it, such a row fails the batch.

    Guarantees: every row of a batch is committed together with the batch's end offsets or not at all; a replayed batch
    is skipped; an older start of the pipeline (a zombie driver) is fenced and raises `Fenced`; a batch that does not
    begin where progress ends raises `OffsetGap`; a COMMIT without an answer raises `CommitUnknown`, which ends the query
    so that the replay can find out. Any other failure raises psycopg's own error, and nothing was written.
    """

    def __init__(
        self,
        conninfo: str,
        table: str,
        *,
        pipeline: str,
        checkpoint: str | Path,
        rebuilds_state: bool = False,
        dead_letters: str | None = None,
        progress_table: str = "onceproof_progress",
        connect_timeout_s: int = 10,
        lock_timeout_s: float = 30.0,
        idle_timeout_s: float = 120.0,
        write_timeout_s: float = 300.0,
        commit_timeout_s: float = 30.0,
    ) -> None:
        """Takes the pipeline's next epoch at once, so that older driver starts can no longer commit. Raises `psycopg.Error`."""
        self._conninfo = conninfo
        self._table = sql.Identifier(*table.split("."))
        self._progress = sql.Identifier(*progress_table.split("."))
        self._pipeline = pipeline
        self._checkpoint = Checkpoint(checkpoint)
        self._rebuilds_state = rebuilds_state
        self._dead_letters = None if dead_letters is None else DeadLetters(dead_letters, pipeline)
        self._query_id = ""
        self._options: dict[str, Any] = {
            "connect_timeout": connect_timeout_s,
            "tcp_user_timeout": int(write_timeout_s * 1000),
            "application_name": f"onceproof {pipeline}",
        }
        # Longer than a healthy predecessor's transaction. A disconnected one holds the lock until the server ends it.
        self._lock_timeout_s = lock_timeout_s
        # Bounds how long a predecessor that died without closing its connection can block the successor.
        self._idle_timeout_s = idle_timeout_s
        self._write_timeout_s = write_timeout_s
        self._commit_timeout_s = commit_timeout_s
        self.epoch = self._take_epoch()

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """Called by Spark. Runs one action on the frame even if the batch is skipped, because stateful queries need it."""
        self._query_id = self._checkpoint.query_id()
        self._reach("after-offset-log", batch_id, phase="sink-entry")
        self.write(batch_df.toArrow(), batch_id)

    def write(self, rows: pa.Table, batch_id: int) -> bool:
        """Commit ``rows`` as batch ``batch_id``, unless progress covers it. Returns whether they were written."""
        return self._write(rows, batch_id)

    def _write(self, rows: Any, batch_id: int) -> bool:
        """Commit what `_put` makes of ``rows``, and the progress, in one transaction."""
        # Read before the transaction: where checkpoints are remote, a read takes long, and may fail.
        self._query_id = self._checkpoint.query_id()
        ranges = self._checkpoint.ranges(batch_id)
        try:
            with closing(self._connect()) as connection:
                with cut_after(connection, self._write_timeout_s):
                    recorded = self._lock_progress(connection)
                    if decide(recorded, ranges, self._query_id, rebuilds_state=self._rebuilds_state) == "skip":
                        self._report("skipped", batch_id)
                        return False
                    self._put_batch(connection, rows, ranges)
                    progress = Progress(self._query_id, batch_id, advanced(recorded, ranges))
                    xid = self._record_progress(connection, progress)
                self._reach("before-sink-commit", batch_id, xid=xid)
                self._commit(connection, batch_id)
        except Exception as error:
            self._report("attempt-failed", batch_id, **_described(error))
            raise
        self._report("committed", batch_id, xid=xid)
        self._reach("after-sink-commit", batch_id, xid=xid)
        return True

    def _connect(self) -> psycopg.Connection[Any]:
        # One connection per batch: a connection that was idle between batches may be dead without either side noticing.
        connection = psycopg.connect(self._conninfo, **self._options)
        settings = {"lock_timeout": self._lock_timeout_s, "idle_in_transaction_session_timeout": self._idle_timeout_s}
        for name, seconds in settings.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, f"{int(seconds * 1000)}ms"))
        connection.commit()
        return connection

    def _take_epoch(self) -> int:
        with closing(self._connect()) as connection, cut_after(connection, self._write_timeout_s):
            # If two starts are the first at once, CREATE TABLE IF NOT EXISTS alone can fail on the catalogue's unique index.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"onceproof:{self._progress}",))
            for create in self._tables():
                connection.execute(create)
            take = sql.SQL(
                "INSERT INTO {0} AS p (pipeline, epoch) VALUES (%s, 1)"
                " ON CONFLICT (pipeline) DO UPDATE SET epoch = p.epoch + 1 RETURNING epoch"
            )
            row = connection.execute(take.format(self._progress), (self._pipeline,)).fetchone()
            connection.commit()
        assert row is not None
        return int(row[0])

    def _tables(self) -> list[sql.Composed]:
        """The statements that create the sink's own tables, where they do not exist."""
        letters = [] if self._dead_letters is None else [self._dead_letters.create()]
        return [sql.SQL(_CREATE_PROGRESS).format(self._progress), *letters]

    def _lock_progress(self, connection: psycopg.Connection[Any]) -> Progress | None:
        """The recorded progress, with the row locked until this transaction ends. Raises `Fenced`."""
        # The first statement of the transaction: it waits for a predecessor's COMMIT that is still on its way, and then sees it
        # (READ COMMITTED reads the row again after the wait).
        lock = sql.SQL("SELECT epoch, query_id, batch_id, offsets FROM {} WHERE pipeline = %s FOR UPDATE").format(
            self._progress
        )
        row = connection.execute(lock, (self._pipeline,)).fetchone()
        if row is None or row[0] != self.epoch:
            raise Fenced(
                f"pipeline {self._pipeline!r} is at epoch {row and row[0]}, but this start of it has epoch {self.epoch}",
                hint="another driver of the pipeline has started since; stop one of the two",
            )
        _, query_id, batch_id, offsets = row
        return None if offsets is None else Progress(query_id, batch_id, offsets)

    def _put_batch(self, connection: psycopg.Connection[Any], rows: Any, ranges: Ranges) -> None:
        if self._dead_letters is None:
            self._put(connection, rows)
            return
        refused = put_accepted(connection, rows, self._put)
        self._dead_letters.add(
            connection, self._query_id, ranges, refused, lambda number: rows.slice(number, 1).to_pylist()[0]
        )

    def _put(self, connection: psycopg.Connection[Any], rows: Any) -> None:
        copy_rows(connection, self._table, rows.schema, rows.to_batches(max_chunksize=_CHUNK))

    def _record_progress(self, connection: psycopg.Connection[Any], progress: Progress) -> str:
        """Update the locked row. Returns the transaction's id, for which ``pg_xact_status`` gives the outcome."""
        update = sql.SQL(
            "UPDATE {} SET query_id = %s, batch_id = %s, offsets = %s WHERE pipeline = %s"
            " RETURNING pg_current_xact_id()::text"
        ).format(self._progress)
        values = (progress.query_id, progress.batch_id, json.dumps(progress.offsets), self._pipeline)
        row = connection.execute(update, values).fetchone()
        assert row is not None, "the progress row is locked by this transaction, so it exists"
        return str(row[0])

    def _commit(self, connection: psycopg.Connection[Any], batch_id: int) -> None:
        try:
            with cut_after(connection, self._commit_timeout_s):
                connection.commit()
        except psycopg.Error as error:
            self._report("commit-failed", batch_id, **_described(error))
            state = error.sqlstate
            if state is None or state.startswith("08") or state in _UNKNOWN_AT_COMMIT:
                raise CommitUnknown(
                    f"the COMMIT of batch {batch_id} of pipeline {self._pipeline!r} got no answer: {error}",
                    hint="restart the query: the replayed batch is skipped if the COMMIT was applied",
                ) from error
            raise

    def _reach(self, point: str, batch_id: int, **facts: Any) -> None:
        failpoints.reach(point, sink="postgres", batch=batch_id, query_id=self._query_id, **facts)

    def _report(self, event: str, batch_id: int, **facts: Any) -> None:
        failpoints.report(event, sink="postgres", batch=batch_id, query_id=self._query_id, **facts)


class PostgresUpsert(PostgresAppend):
    """A sink for ``foreachBatch`` that keeps the last state of each key: for aggregations in update mode.

    Each row of a batch replaces the row of ``table`` with the same values in the ``key`` columns, or is inserted; columns
    that the batch lacks keep their values. ``table`` must have a unique index on exactly the ``key`` columns, which must never
    be NULL (in a unique index, two NULLs differ). If several rows of a batch have the same key, the last one stays
    (of the columns in ``merge``, all of them count).

    ``merge`` names columns that are combined with the stored value instead of replaced: ``{"n": "sum", "worst": "max"}``.
    A batch then holds increments, and the totals need no state in Spark. NULL adds nothing.

    Assumes and guarantees the same as `PostgresAppend`. A plain replay that only replaces rows would do no harm; the locked
    progress row prevents an increment from counting twice, and a late COMMIT of a predecessor from overwriting a newer
    state with an older one.
    """

    def __init__(
        self,
        conninfo: str,
        table: str,
        *,
        key: Sequence[str],
        merge: Mapping[str, Merge] | None = None,
        **settings: Any,
    ) -> None:
        """``settings`` are those of `PostgresAppend`."""
        if not key:
            raise SinkError("an upsert needs a key", hint="name the columns of the table's unique index as key=[...]")
        if both := sorted(set(key) & set(merge or {})):
            raise SinkError(f"{both[0]!r} is in the key: it cannot be merged", hint="merge other columns")
        if unknown := sorted(name for name, how in (merge or {}).items() if how not in _MERGED):
            how = (merge or {})[unknown[0]]
            raise SinkError(f"column {unknown[0]!r} cannot be merged by {how!r}", hint=f"use {', '.join(_MERGED)}")
        super().__init__(conninfo, table, **settings)
        self._key = tuple(key)
        self._merge = dict(merge or {})

    def _put(self, connection: psycopg.Connection[Any], rows: Any) -> None:
        if missing := sorted(self._merge.keys() - set(rows.column_names)):
            # Perhaps misspelt: the column that was meant would be replaced, and its total lost.
            raise SinkError(
                f"the batch has no column {missing[0]!r} to merge, but {', '.join(rows.column_names)}",
                hint="name columns of the batch in merge",
            )
        names = [sql.Identifier(name) for name in rows.column_names]
        others = [name for name in rows.column_names if name not in self._key]
        change = [sql.SQL("{} = {}").format(sql.Identifier(name), self._new_value(name)) for name in others]
        statement = sql.SQL("INSERT INTO {} AS held ({}) VALUES ({}) ON CONFLICT ({}) DO {}").format(
            self._table,
            sql.SQL(", ").join(names),
            sql.SQL(", ").join([sql.Placeholder()] * len(names)),
            sql.SQL(", ").join(map(sql.Identifier, self._key)),
            sql.SQL("UPDATE SET ") + sql.SQL(", ").join(change) if change else sql.SQL("NOTHING"),
        )
        with connection.cursor() as cursor:
            for batch in rows.to_batches(max_chunksize=_CHUNK):
                cursor.executemany(statement, tuples(batch))

    def _new_value(self, column: str) -> sql.Composed:
        form = _MERGED[self._merge[column]] if column in self._merge else "EXCLUDED.{0}"
        return sql.SQL(form).format(sql.Identifier(column))


@contextmanager
def cut_after(connection: psycopg.Connection[Any], seconds: float) -> Iterator[None]:
    """Shut down libpq's socket if the block takes longer: the call in it then raises `psycopg.OperationalError`.

    libpq waits for an answer for ever, ``tcp_user_timeout`` does not notice a peer that acknowledges but never answers,
    and a cancel request would take the same broken network path. Shutting down the socket works in every case.
    """
    # A duplicate, so that the timer can never hit a descriptor that was closed and reused.
    watched = socket.socket(fileno=os.dup(connection.fileno()))
    timer = threading.Timer(seconds, _shut_down, [watched])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        watched.close()


def _shut_down(watched: socket.socket) -> None:
    with suppress(OSError):  # the other side closed first
        watched.shutdown(socket.SHUT_RDWR)


def _described(error: Exception) -> dict[str, str | None]:
    return {"error": type(error).__name__, "sqlstate": getattr(error, "sqlstate", None), "message": str(error)}
