"""Append to a Postgres table, effectively once, from ``foreachBatch``.

Each batch is one transaction that holds the rows *and* the progress, and that locks the progress row before anything
else. A driver that lost the answer to its COMMIT needs no special code: the replay locks the row, reads what is true,
and skips or writes. The lock, not the check, is what keeps a late COMMIT of a predecessor from doubling a batch.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from onceproof.sinks import failpoints
from onceproof.sinks.errors import CommitUnknown, Fenced, SinkError
from onceproof.sinks.offsets import Checkpoint, Ranges, Vector, advanced, decide

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

# The server's answer is missing or says that the server went away: the COMMIT may have been applied all the same.
_UNKNOWN_AT_COMMIT = ("57P01", "57P02", "57P03")

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

    ``conninfo`` is a libpq URI or string; put the password into a passfile. The table must exist; columns go by name.
    ``pipeline`` is the logical name under which progress is kept: it must stay the same over restarts, be used by one
    query only, and outlives the checkpoint. ``checkpoint`` is the query's ``checkpointLocation``, a local folder.

    Assumes: Kafka sources only; micro-batches in the default, synchronous mode (asynchronous progress tracking and
    real-time mode do not tie a batch to an offset range); the same rows whenever a batch is replayed, so no ``rand()``,
    ``uuid()`` or clock in them; for an order within each source partition, one task a partition and no shuffle
    (``minPartitions`` unset, ``spark.sql.adaptive.streaming.stateless.enabled=false``). A batch must fit into the
    driver's memory.

    Guarantees: every row of a batch is committed together with the batch's end offsets or not at all; a replayed batch
    is skipped; an older start of the pipeline (a zombie driver) is fenced and raises `Fenced`; a batch that does not
    begin where progress ends raises `OffsetGap`; a COMMIT without an answer raises `CommitUnknown`, which ends the query
    so that the replay finds out. Any other failure is psycopg's own error, and nothing was written.
    """

    def __init__(
        self,
        conninfo: str,
        table: str,
        *,
        pipeline: str,
        checkpoint: str | Path,
        progress_table: str = "onceproof_progress",
        connect_timeout_s: int = 10,
        lock_timeout_s: float = 30.0,
        idle_timeout_s: float = 120.0,
        write_timeout_s: float = 300.0,
        commit_timeout_s: float = 30.0,
    ) -> None:
        """Takes the pipeline's next epoch at once: an older start cannot commit any more. Raises `psycopg.Error`."""
        self._conninfo = conninfo
        self._table = sql.Identifier(*table.split("."))
        self._progress = sql.Identifier(*progress_table.split("."))
        self._pipeline = pipeline
        self._checkpoint = Checkpoint(checkpoint)
        self._connect_timeout_s = connect_timeout_s
        # Longer than a healthy predecessor's transaction: a cut-off one holds the lock until the server drops it.
        self._lock_timeout_s = lock_timeout_s
        # Bounds how long a predecessor that vanished without closing its connection can block the successor.
        self._idle_timeout_s = idle_timeout_s
        self._write_timeout_s = write_timeout_s
        self._commit_timeout_s = commit_timeout_s
        self.epoch = self._take_epoch()

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """What Spark calls. One action on the frame, also when the batch turns out to be done: state needs it run."""
        self._reach("after-offset-log", batch_id, phase="sink-entry")
        self.write(batch_df.toArrow(), batch_id)

    def write(self, rows: pa.Table, batch_id: int) -> bool:
        """Commit ``rows`` as batch ``batch_id``, unless progress covers it. Returns whether they were written."""
        ranges = self._checkpoint.ranges(batch_id)
        try:
            with closing(self._connect()) as connection:
                with _cut_after(connection, self._write_timeout_s):
                    recorded = self._lock_progress(connection)
                    if decide(recorded, ranges) == "skip":
                        self._tell("skipped", batch_id)
                        return False
                    self._copy(connection, rows)
                    xid = self._record_progress(connection, advanced(recorded, ranges), ranges)
                self._reach("before-sink-commit", batch_id, xid=xid)
                self._commit(connection, batch_id)
        except (psycopg.Error, SinkError) as error:
            self._tell("attempt-failed", batch_id, **_described(error))
            raise
        self._tell("committed", batch_id, xid=xid)
        self._reach("after-sink-commit", batch_id, xid=xid)
        return True

    def _connect(self) -> psycopg.Connection[Any]:
        # A connection a batch: one that idled between batches may be dead without either side knowing it.
        connection = psycopg.connect(
            self._conninfo,
            connect_timeout=self._connect_timeout_s,
            tcp_user_timeout=int(self._write_timeout_s * 1000),
            application_name=f"onceproof {self._pipeline}",
        )
        settings = {"lock_timeout": self._lock_timeout_s, "idle_in_transaction_session_timeout": self._idle_timeout_s}
        for name, seconds in settings.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, f"{int(seconds * 1000)}ms"))
        connection.commit()
        return connection

    def _take_epoch(self) -> int:
        with closing(self._connect()) as connection, _cut_after(connection, self._write_timeout_s):
            # Two first starts at once: CREATE TABLE IF NOT EXISTS alone can fail on the catalogue's unique index.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"onceproof:{self._progress}",))
            connection.execute(sql.SQL(_CREATE_PROGRESS).format(self._progress))
            take = sql.SQL(
                "INSERT INTO {0} AS p (pipeline, epoch) VALUES (%s, 1)"
                " ON CONFLICT (pipeline) DO UPDATE SET epoch = p.epoch + 1 RETURNING epoch"
            )
            row = connection.execute(take.format(self._progress), (self._pipeline,)).fetchone()
            connection.commit()
        assert row is not None
        return int(row[0])

    def _lock_progress(self, connection: psycopg.Connection[Any]) -> Vector | None:
        """The recorded offsets, with the row locked until this transaction ends. Raises `Fenced`."""
        # First of all statements: a predecessor's COMMIT that is still on its way is waited for here, and then seen
        # (READ COMMITTED reads the row again after the wait).
        lock = sql.SQL("SELECT epoch, offsets FROM {} WHERE pipeline = %s FOR UPDATE").format(self._progress)
        row = connection.execute(lock, (self._pipeline,)).fetchone()
        epoch, offsets = row if row is not None else (None, None)
        if epoch != self.epoch:
            raise Fenced(
                f"pipeline {self._pipeline!r} is at epoch {epoch}, and this start of it has epoch {self.epoch}",
                hint="another driver of the pipeline has started since; stop one of the two",
            )
        return offsets

    def _copy(self, connection: psycopg.Connection[Any], rows: pa.Table) -> None:
        columns = sql.SQL(", ").join(sql.Identifier(name) for name in rows.column_names)
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(self._table, columns)
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for batch in rows.to_batches(max_chunksize=1024):
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    copy.write_row(row)

    def _record_progress(self, connection: psycopg.Connection[Any], offsets: Vector, ranges: Ranges) -> str:
        """Update the locked row; returns the transaction's id, with which ``pg_xact_status`` tells its fate."""
        update = sql.SQL(
            "UPDATE {} SET query_id = %s, batch_id = %s, offsets = %s WHERE pipeline = %s"
            " RETURNING pg_current_xact_id()::text"
        ).format(self._progress)
        values = (self._checkpoint.query_id(), ranges.batch, json.dumps(offsets), self._pipeline)
        row = connection.execute(update, values).fetchone()
        assert row is not None, "the progress row is locked by this transaction, so it exists"
        return str(row[0])

    def _commit(self, connection: psycopg.Connection[Any], batch_id: int) -> None:
        try:
            with _cut_after(connection, self._commit_timeout_s):
                connection.commit()
        except psycopg.Error as error:
            self._tell("commit-failed", batch_id, **_described(error))
            state = error.sqlstate
            if state is None or state.startswith("08") or state in _UNKNOWN_AT_COMMIT:
                raise CommitUnknown(
                    f"the COMMIT of batch {batch_id} of pipeline {self._pipeline!r} got no answer: {error}",
                    hint="restart the query: the replayed batch is skipped if the COMMIT was applied",
                ) from error
            raise

    def _reach(self, point: str, batch_id: int, **facts: Any) -> None:
        failpoints.reach(point, sink="postgres", batch=batch_id, query_id=self._checkpoint.query_id(), **facts)

    def _tell(self, event: str, batch_id: int, **facts: Any) -> None:
        failpoints.tell(event, sink="postgres", batch=batch_id, query_id=self._checkpoint.query_id(), **facts)


@contextmanager
def _cut_after(connection: psycopg.Connection[Any], seconds: float) -> Iterator[None]:
    """Close the connection under libpq if the block lasts longer: the call in it then raises `psycopg.OperationalError`.

    libpq waits for an answer without end, ``tcp_user_timeout`` does not see a peer that acknowledges and stays silent,
    and a cancel request would go the same cut way. Shutting the socket down works in every case.
    """
    # A duplicate, so that the timer can never hit a descriptor that was closed and given to somebody else.
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
