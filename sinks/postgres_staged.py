"""Append to a Postgres table from Spark's tasks, effectively once, from ``foreachBatch``.

Each attempt at a task copies its rows into a staging table of the batch and returns its own random name. Spark gives the
driver the result of exactly one attempt at each task, so the driver knows the winners: it inserts their rows into the real
table, together with the progress, in one transaction. Rows of lost attempts (retries, speculation) are never read.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._lazy import psycopg, sql
from .errors import SinkError
from .postgres import PostgresAppend, cut_after
from .postgres_copy import copy_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_ATTEMPT, _ROW = "onceproof_attempt", "onceproof_row"

#: A lost attempt may still hold a lock on its staging table. The table is then dropped later.
_DROP_TIMEOUT_MS = 100


class StagedRowsLost(SinkError):
    """Staged rows are missing at the commit: the database was restarted in between. The replay stages them again."""


@dataclass(frozen=True)
class Staged:
    """The winning attempts of a batch, in the order of Spark's partitions."""

    table: sql.Identifier
    """The staging table."""
    columns: tuple[str, ...]
    attempts: tuple[str, ...]
    rows: int


@dataclass(frozen=True)
class _Destination:
    """What a task needs to know; pickled with it."""

    conninfo: str
    options: Mapping[str, Any]
    table: str
    """The staging table, quoted for SQL."""
    timeout_s: float

    def stage(self, batches: Iterable[pa.RecordBatch]) -> tuple[str, int]:
        """Copy one attempt's rows. Returns the attempt's name and its number of rows.

        Raises `psycopg.Error`: Spark then tries the task again.
        """
        attempt = str(uuid.uuid4())
        numbered = _numbered(batches, attempt)
        first = next(numbered, None)
        if first is None:
            return attempt, 0
        table = sql.SQL(self.table)
        with (
            psycopg.connect(self.conninfo, **self.options) as connection,
            cut_after(connection, self.timeout_s),
        ):
            rows = copy_rows(connection, table, first.schema, chain([first], numbered))
            connection.commit()
            return attempt, rows


class PostgresStaged(PostgresAppend):
    """A sink for ``df.writeStream.foreachBatch(sink)`` that appends each batch to ``table`` exactly once, from the tasks.

    For batches that are too large for the driver's memory: no row passes through the driver. Tasks run anywhere that
    reaches the database and can import this package; the password must be in a passfile there too.

    ``ordered``: whether the rows of each task are inserted in their order, which costs a sort in the database.

    Takes the settings of `PostgresAppend`, assumes and guarantees the same, except for the batch's size. The staging tables
    are unlogged: a database that crashes between staging and the commit empties them, so the commit counts the rows and
    raises `StagedRowsLost` instead of losing them. Lost attempts may leave a staging table behind; later batches and the
    next start of the pipeline drop it. The user of ``conninfo`` needs the right to create tables in the table's schema.
    """

    def __init__(
        self, conninfo: str, table: str, *, pipeline: str, checkpoint: str | Path, ordered: bool = True, **settings: Any
    ) -> None:
        """``settings`` are those of `PostgresAppend`, without ``dead_letters``. Raises `SinkError` or `psycopg.Error`."""
        if settings.get("dead_letters") is not None:
            raise SinkError(
                "PostgresStaged has no dead letters: a refused row fails its batch",
                hint="use PostgresAppend, or filter such rows in the query",
            )
        super().__init__(conninfo, table, pipeline=pipeline, checkpoint=checkpoint, **settings)
        self._ordered = ordered
        self._schema = tuple(table.split(".")[:-1])
        # In 63 characters, however long the pipeline's name is. Epochs are of one progress table.
        identity = f"{settings.get('progress_table')} {pipeline}"
        self._prefix = f"onceproof_staged_{hashlib.sha256(identity.encode()).hexdigest()[:16]}_"
        self._superseded = self._drop(self._tables_of_older_starts())
        """Staging tables that are needed no more and could not be dropped yet."""

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """Called by Spark. Stages the batch even if it is then skipped, because stateful queries need the action."""
        self._query_id = self._checkpoint.query_id()
        self._reach("after-offset-log", batch_id, phase="sink-entry")
        names, table = tuple(batch_df.columns), self._staging_table(batch_id)
        to = self._destination(table, names)

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            attempt, rows = to.stage(batches)
            yield pa.RecordBatch.from_pydict({"attempt": [attempt], "rows": [rows]})

        winners = batch_df.mapInArrow(stage, "attempt string, rows bigint").collect()
        attempts, rows = tuple(row.attempt for row in winners), sum(row.rows for row in winners)
        self._publish(Staged(table, names, attempts, rows), batch_id)

    def write(self, rows: pa.Table, batch_id: int) -> bool:
        """Stage and commit rows that the driver has. Returns whether they were written."""
        names, table = tuple(rows.column_names), self._staging_table(batch_id)
        attempt, count = self._destination(table, names).stage(rows.to_batches())
        return self._publish(Staged(table, names, (attempt,), count), batch_id)

    def _publish(self, staged: Staged, batch_id: int) -> bool:
        written = self._write(staged, batch_id)
        self._superseded = self._drop([*self._superseded, self._staging_name(batch_id)])
        return written

    def _put(self, connection: psycopg.Connection[Any], rows: Staged) -> None:
        columns = sql.SQL(", ").join(map(sql.Identifier, rows.columns))
        order = sql.SQL("ORDER BY array_position(%(attempts)s::uuid[], {}), {}").format(
            sql.Identifier(_ATTEMPT), sql.Identifier(_ROW)
        )
        publish = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE {} = ANY(%(attempts)s::uuid[]) {}").format(
            self._table,
            columns,
            columns,
            rows.table,
            sql.Identifier(_ATTEMPT),
            order if self._ordered else sql.SQL(""),
        )
        found = connection.execute(publish, {"attempts": list(rows.attempts)}).rowcount
        if found != rows.rows:
            raise StagedRowsLost(
                f"{rows.rows} rows were staged in {rows.table.as_string(connection)}, but {found} are there",
                hint="the database was probably restarted; restart the query, which stages the batch again",
            )

    def _destination(self, table: sql.Identifier, names: tuple[str, ...]) -> _Destination:
        """Create the staging table, with the types of the real table."""
        columns = sql.SQL(", ").join(map(sql.Identifier, names))
        # AS SELECT takes the types and leaves out constraints: the real table checks its own.
        create = sql.SQL(
            "CREATE UNLOGGED TABLE IF NOT EXISTS {} AS SELECT {}, NULL::uuid AS {}, NULL::bigint AS {} FROM {} WITH NO DATA"
        ).format(table, columns, sql.Identifier(_ATTEMPT), sql.Identifier(_ROW), self._table)
        with closing(self._connect()) as connection, cut_after(connection, self._write_timeout_s):
            connection.execute(create)
            connection.commit()
            return _Destination(self._conninfo, self._options, table.as_string(connection), self._write_timeout_s)

    def _staging_name(self, batch_id: int) -> str:
        return f"{self._prefix}{self.epoch}_{batch_id}"

    def _staging_table(self, batch_id: int) -> sql.Identifier:
        return sql.Identifier(*self._schema, self._staging_name(batch_id))

    def _tables_of_older_starts(self) -> list[str]:
        find = "SELECT relname FROM pg_class WHERE starts_with(relname, %s) AND relkind = 'r'"
        with closing(self._connect()) as connection, cut_after(connection, self._write_timeout_s):
            names = [str(row[0]) for row in connection.execute(find, (self._prefix,))]
        return [name for name in names if int(name.removeprefix(self._prefix).split("_")[0]) < self.epoch]

    def _drop(self, names: Sequence[str]) -> list[str]:
        """Drop staging tables as far as that is possible at once: no result depends on it. Returns those that are left."""
        left = list(names)
        with (
            suppress(psycopg.Error),
            closing(self._connect()) as connection,
            cut_after(connection, self._write_timeout_s),
        ):
            connection.autocommit = True
            connection.execute("SELECT set_config('lock_timeout', %s, false)", (f"{_DROP_TIMEOUT_MS}ms",))
            for name in names:
                table = sql.Identifier(*self._schema, name)
                with suppress(psycopg.Error):
                    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
                    left.remove(name)
        return left


def _numbered(batches: Iterable[pa.RecordBatch], attempt: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # costs 0.1 s, which a job without this sink should not pay

    start = 0
    for batch in batches:
        end = start + batch.num_rows
        names = pa.repeat(attempt, batch.num_rows)
        numbers = pa.array(range(start, end), pa.int64())
        yield batch.append_column(_ATTEMPT, names).append_column(_ROW, numbers)
        start = end
