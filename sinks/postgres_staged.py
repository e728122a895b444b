"""Append to a Postgres table from Spark's tasks, effectively once, from ``foreachBatch``.

Each attempt at a task copies its rows into a staging table of the batch and returns its own random name. Spark gives the
driver the result of exactly one attempt at each task, so the driver knows the winners: it inserts their rows into the real
table, together with the progress, in one transaction. Rows of lost attempts (retries, speculation) are never read.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._lazy import psycopg, sql
from .dead_letters import Refused, put_accepted
from .errors import SinkError
from .kafka_records import readable
from .offsets import Ranges
from .postgres import PostgresAppend, cut_after
from .postgres_copy import copy_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_ATTEMPT, _ROW = "onceproof_attempt", "onceproof_row"

#: Of a row that the staging table refused: the row as JSON, the SQLSTATE and the reason. Its own columns are NULL.
_VALUE, _STATE, _REASON = "onceproof_value", "onceproof_sqlstate", "onceproof_reason"

#: The rows of a batch with their numbers, indexed by them, to be put in parts.
_NUMBERED = ("pg_temp", "onceproof_numbered")

#: A lost attempt may still hold a lock on its staging table. The table is then dropped later.
_DROP_TIMEOUT_MS = 100


class StagedRowsLost(SinkError):
    """Staged rows are missing at the commit: the database was restarted in between. The replay stages them again."""


@dataclass(frozen=True)
class Attempt:
    """What one attempt at a task has staged."""

    name: str
    rows: int
    refused: int = 0
    """How many of the rows the staging table refused."""


@dataclass(frozen=True)
class Staged:
    """The winning attempts of a batch, in the order of Spark's partitions."""

    table: sql.Identifier
    """The staging table."""
    columns: tuple[str, ...]
    attempts: tuple[Attempt, ...]

    @property
    def num_rows(self) -> int:
        return sum(attempt.rows for attempt in self.attempts)

    @property
    def refused(self) -> int:
        return sum(attempt.refused for attempt in self.attempts)

    @property
    def values(self) -> dict[str, Any]:
        """For statements: the names of the attempts, and the number of the first row of each in the batch."""
        rows = [attempt.rows for attempt in self.attempts]
        starts = list(accumulate(rows, initial=0))[: len(rows)]
        return {"attempts": [attempt.name for attempt in self.attempts], "starts": starts}

    def publish(self, connection: psycopg.Connection[Any], table: sql.Identifier, *, ordered: bool) -> None:
        """Insert the rows into ``table``, without those that the staging table refused. Raises `StagedRowsLost`."""
        columns = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        order = sql.SQL("ORDER BY array_position(%(attempts)s::uuid[], {}), {}").format(
            sql.Identifier(_ATTEMPT), sql.Identifier(_ROW)
        )
        publish = sql.SQL(
            "INSERT INTO {} ({}) SELECT {} FROM {} WHERE {} = ANY(%(attempts)s::uuid[]) AND {} IS NULL {}"
        ).format(
            table,
            columns,
            columns,
            self.table,
            sql.Identifier(_ATTEMPT),
            sql.Identifier(_REASON),
            order if ordered else sql.SQL(""),
        )
        self.demand(connection, connection.execute(publish, self.values).rowcount, self.num_rows - self.refused)

    def numbered(self, connection: psycopg.Connection[Any]) -> _Numbered:
        """Copy the rows that the staging table accepted into a temporary table, with their numbers. Raises `StagedRowsLost`."""
        copy = sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS {}").format(
            sql.Identifier(*_NUMBERED), self._winners(sql.SQL("IS NULL"), self.columns)
        )
        count = connection.execute(copy, self.values).rowcount
        self.demand(connection, count, self.num_rows - self.refused)
        connection.execute(
            sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(sql.Identifier(*_NUMBERED), sql.Identifier(_ROW))
        )
        return _Numbered(self.columns, 0, self.num_rows)

    def found(self) -> sql.Composed:
        """The SELECT of the rows that the staging table refused, for `DeadLetters.add_found`."""
        return self._winners(sql.SQL("IS NOT NULL"), (_VALUE, _STATE, _REASON))

    def _winners(self, reason: sql.SQL, columns: Iterable[str]) -> sql.Composed:
        """The SELECT of the numbers and the columns of the winners' rows."""
        return sql.SQL(
            "SELECT w.start + s.{row} AS {row}, {columns} FROM {table} AS s"
            " JOIN unnest(%(attempts)s::uuid[], %(starts)s::bigint[]) AS w (attempt, start) ON s.{attempt} = w.attempt"
            " WHERE s.{reason} {which}"
        ).format(
            row=sql.Identifier(_ROW),
            columns=sql.SQL(", ").join(sql.Identifier("s", name) for name in columns),
            table=self.table,
            attempt=sql.Identifier(_ATTEMPT),
            reason=sql.Identifier(_REASON),
            which=reason,
        )

    def demand(self, connection: psycopg.Connection[Any], found: int, expected: int) -> None:
        """Raise `StagedRowsLost` if not all rows were found."""
        if found != expected:
            raise StagedRowsLost(
                f"{expected} rows were staged in {self.table.as_string(connection)}, but {found} are there",
                hint="the database was probably restarted; restart the query, which stages the batch again",
            )


@dataclass(frozen=True)
class _Numbered:
    """Rows of a batch by their numbers in it. Those that were refused when they were staged are missing."""

    columns: tuple[str, ...]
    first: int
    num_rows: int

    def slice(self, offset: int, length: int) -> _Numbered:
        return _Numbered(self.columns, self.first + offset, length)

    def publish(self, connection: psycopg.Connection[Any], table: sql.Identifier, *, ordered: bool) -> None:
        """Insert the rows into ``table``, in their order either way: they are indexed by it."""
        columns = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        publish = sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM {numbered}"
            " WHERE {row} >= %s AND {row} < %s ORDER BY {row}"
        ).format(table=table, columns=columns, numbered=sql.Identifier(*_NUMBERED), row=sql.Identifier(_ROW))
        connection.execute(publish, (self.first, self.first + self.num_rows))

    def found(self) -> sql.Composed:
        """The SELECT of refused rows, for `DeadLetters.add_found`."""
        return sql.SQL(
            "SELECT n.{row}, (SELECT row_to_json(v) FROM (SELECT {columns}) AS v), r.sqlstate, r.reason FROM {table} AS n"
            " JOIN unnest(%(numbers)s::bigint[], %(states)s::text[], %(reasons)s::text[]) AS r (number, sqlstate, reason)"
            " ON n.{row} = r.number"
        ).format(
            row=sql.Identifier(_ROW),
            columns=sql.SQL(", ").join(sql.Identifier("n", name) for name in self.columns),
            table=sql.Identifier(*_NUMBERED),
        )


@dataclass(frozen=True)
class _Destination:
    """What a task needs to know; pickled with it."""

    conninfo: str
    options: Mapping[str, Any]
    table: str
    """The staging table, quoted for SQL."""
    timeout_s: float
    keeps_refused: bool
    """Whether rows that the staging table refuses are staged as JSON. Otherwise they fail the task."""

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Attempt:
        """Copy one attempt's rows.

        Raises `psycopg.Error`: Spark then tries the task again.
        """
        name = str(uuid.uuid4())
        numbered = _numbered(batches, name)
        first = next(numbered, None)
        if first is None:
            return Attempt(name, 0)
        table, found = sql.SQL(self.table), chain([first], numbered)
        with (
            psycopg.connect(self.conninfo, **self.options) as connection,
            cut_after(connection, self.timeout_s),
            connection.transaction(),
        ):
            if not self.keeps_refused:
                return Attempt(name, copy_rows(connection, table, first.schema, found))
            rows = refused = 0
            for batch in found:
                rows += batch.num_rows
                refused += _stage_accepted(connection, table, batch)
            return Attempt(name, rows, refused)


def _stage_accepted(connection: psycopg.Connection[Any], table: sql.SQL, batch: pa.RecordBatch) -> int:
    """Copy the rows that the staging table accepts, and the others as JSON. Returns how many it refused."""
    import pyarrow as pa

    def put(connection: psycopg.Connection[Any], part: pa.RecordBatch) -> None:
        copy_rows(connection, table, part.schema, [part])

    refused = put_accepted(connection, batch, put)
    if refused:
        rows = [_refused_row(batch.slice(one.number, 1).to_pylist()[0], one) for one in refused]
        texts = dict.fromkeys((_VALUE, _STATE, _REASON), pa.string())
        schema = pa.schema({_ATTEMPT: pa.string(), _ROW: pa.int64(), **texts})
        copy_rows(connection, table, schema, [pa.RecordBatch.from_pylist(rows, schema=schema)])
    return len(refused)


def _refused_row(row: dict[str, Any], refused: Refused) -> dict[str, Any]:
    own = {_ATTEMPT: row.pop(_ATTEMPT), _ROW: row.pop(_ROW)}
    return {**own, _VALUE: json.dumps(readable(row)), _STATE: refused.sqlstate, _REASON: str(refused.error)}


class PostgresStaged(PostgresAppend):
    """A sink for ``df.writeStream.foreachBatch(sink)`` that appends each batch to ``table`` exactly once, from the tasks.

    For batches that are too large for the driver's memory: no row passes through the driver. Tasks run anywhere that
    reaches the database and can import this package; the password must be in a passfile there too.

    ``ordered``: whether the rows of each task are inserted in their order, which costs a sort in the database.

    Takes the settings of `PostgresAppend`, assumes and guarantees the same, except for the batch's size. The staging tables
    are unlogged: a database that crashes between staging and the commit empties them, so the commit counts the rows and
    raises `StagedRowsLost` instead of losing them. Lost attempts may leave a staging table behind; later batches and the
    next start of the pipeline drop it. The user of ``conninfo`` needs the right to create tables in the table's schema.

    With ``dead_letters``, tasks stage rows that do not fit the columns as JSON, and those of the counted attempts become dead letters. If
    only the real table refuses a row, the database makes a temporary copy of the batch, for which the user needs the right.
    """

    def __init__(
        self, conninfo: str, table: str, *, pipeline: str, checkpoint: str | Path, ordered: bool = True, **settings: Any
    ) -> None:
        """``settings`` are those of `PostgresAppend`. Raises `SinkError` or `psycopg.Error`."""
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

            made = to.stage(batches)
            yield pa.RecordBatch.from_pydict({"name": [made.name], "rows": [made.rows], "refused": [made.refused]})

        winners = batch_df.mapInArrow(stage, "name string, rows bigint, refused bigint").collect()
        self._publish(Staged(table, names, tuple(Attempt(*winner) for winner in winners)), batch_id)

    def write(self, rows: pa.Table, batch_id: int) -> bool:
        """Stage and commit rows that the driver has. Returns whether they were written."""
        names, table = tuple(rows.column_names), self._staging_table(batch_id)
        attempt = self._destination(table, names).stage(rows.to_batches())
        return self._publish(Staged(table, names, (attempt,)), batch_id)

    def _publish(self, staged: Staged, batch_id: int) -> bool:
        written = self._write(staged, batch_id)
        self._superseded = self._drop([*self._superseded, self._staging_name(batch_id)])
        return written

    def _put_batch(self, connection: psycopg.Connection[Any], rows: Staged, ranges: Ranges) -> None:
        letters = self._dead_letters
        if letters is None:
            self._put(connection, rows)
            return

        refused = put_accepted(connection, rows, self._put, lambda staged: staged.numbered(connection))
        count = rows.refused + len(refused)
        if count == 0:
            return
        found, values = rows.found(), rows.values
        if refused:
            others = _Numbered(rows.columns, 0, rows.num_rows).found()
            found = sql.SQL("{} UNION ALL {} ORDER BY 1").format(found, others)
            values |= {
                "numbers": [one.number for one in refused],
                "states": [one.sqlstate for one in refused],
                "reasons": [str(one.error) for one in refused],
            }
        rows.demand(connection, letters.add_found(connection, self._query_id, ranges, found, values), count)

    def _put(self, connection: psycopg.Connection[Any], rows: Staged | _Numbered) -> None:
        rows.publish(connection, self._table, ordered=self._ordered)

    def _destination(self, table: sql.Identifier, names: tuple[str, ...]) -> _Destination:
        """Create the staging table, with the types of the real table."""
        columns = sql.SQL(", ").join(map(sql.Identifier, names))
        # AS SELECT takes the types and leaves out constraints: the real table checks its own.
        create = sql.SQL(
            "CREATE UNLOGGED TABLE IF NOT EXISTS {} AS SELECT {}, NULL::uuid AS {}, NULL::bigint AS {}, NULL::json AS {},"
            " NULL::text AS {}, NULL::text AS {} FROM {} WITH NO DATA"
        ).format(table, columns, *map(sql.Identifier, (_ATTEMPT, _ROW, _VALUE, _STATE, _REASON)), self._table)
        with closing(self._connect()) as connection, cut_after(connection, self._write_timeout_s):
            connection.execute(create)
            connection.commit()
            name = table.as_string(connection)
        return _Destination(
            self._conninfo, self._options, name, self._write_timeout_s, keeps_refused=self._dead_letters is not None
        )

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
        if not left:
            return left
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
