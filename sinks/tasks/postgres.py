"""`PostgresStaged` for a streaming format: its tasks, and the process that commits, share nothing but what they are given."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._lazy import psycopg, sql
from ..postgres import cut_after
from ..postgres_staged import Attempt, PostgresStaged, Staged

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class StagedAttempt:
    """The message of a task."""

    table: str
    attempt: Attempt


class StagedBatches(PostgresStaged):
    """Stages in tasks and commits elsewhere. It connects only to do that.

    Nothing knows when the query was started, so it takes no epoch: the locked progress decides between two drivers, as it does for
    a late COMMIT. The batch that one of them has committed is skipped by the other.
    """

    def __init__(self, conninfo: str, table: str, *, pipeline: str, checkpoint: str | Path, **settings: Any) -> None:
        """``settings`` are those of `PostgresStaged`."""
        super().__init__(conninfo, table, pipeline=pipeline, checkpoint=checkpoint, **settings)
        self._letters = settings.get("dead_letters")
        # Not the names of `PostgresStaged`, which drops those of older epochs.
        self._prefix = self._prefix.replace("_staged_", "_format_")

    def stage(
        self, batches: Iterable[pa.RecordBatch], columns: Sequence[str], batch_id: int, run: str
    ) -> StagedAttempt:
        """In a task: copy the rows of an attempt. ``run`` is Spark's id of this start of the query: no two starts share a table."""
        name = f"{self._prefix}{hashlib.sha256(run.encode()).hexdigest()[:8]}_{batch_id}"
        with closing(self._connect()) as guard, cut_after(guard, self._write_timeout_s):
            # If two tasks are the first at once, CREATE TABLE IF NOT EXISTS alone can fail on the catalogue's unique index.
            guard.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (name,))
            to = self._destination(sql.Identifier(*self._schema, name), tuple(columns))
        return StagedAttempt(name, to.stage(batches))

    def commit(self, messages: Sequence[StagedAttempt], columns: Sequence[str], batch_id: int) -> bool:
        """Publish the attempts that Spark counted. Returns whether they were written, and not skipped as a replay."""
        self.epoch = self._current_epoch()
        (table,) = {message.table for message in messages}
        attempts = tuple(message.attempt for message in messages)
        staged = Staged(sql.Identifier(*self._schema, table), tuple(columns), attempts)
        written = self._write(staged, batch_id)
        with suppress(psycopg.Error):  # what is left goes with the next batch
            self._drop(self._tables_until(batch_id))
        return written

    def abort(self, messages: Sequence[StagedAttempt]) -> None:
        """Drop what the tasks have staged. What is left, because no task has ended, goes with the next batch that is committed."""
        self._drop(sorted({message.table for message in messages}))

    def _take_epoch(self) -> int:
        return 0

    def _tables_of_older_starts(self) -> list[str]:
        return []

    def _current_epoch(self) -> int:
        """That of the progress, so that no batch is refused because of it. Creates the sink's own tables if they are missing."""
        names = [self._progress, *([sql.Identifier(*self._letters.split("."))] if self._letters else [])]
        find = sql.SQL("SELECT epoch FROM {} WHERE pipeline = %s").format(self._progress)
        with closing(self._connect()) as connection, cut_after(connection, self._write_timeout_s):
            known = [
                connection.execute("SELECT to_regclass(%s)", (name.as_string(connection),)).fetchone() for name in names
            ]
            row = connection.execute(find, (self._pipeline,)).fetchone() if (None,) not in known else None
        return super()._take_epoch() if row is None else int(row[0])

    def _tables_until(self, batch_id: int) -> list[str]:
        """Staging tables of this batch and of those before it, of whatever start: none of them is ever published again."""
        find = "SELECT relname FROM pg_class WHERE starts_with(relname, %s) AND relkind = 'r'"
        with closing(self._connect()) as connection, cut_after(connection, self._write_timeout_s):
            names = [str(row[0]) for row in connection.execute(find, (self._prefix,))]
        return [name for name in names if int(name.rpartition("_")[2]) <= batch_id]
