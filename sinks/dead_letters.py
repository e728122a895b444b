"""Rows that the database refuses, kept in a table with their source and the reason, in the transaction of the other rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ._lazy import psycopg, sql
from .errors import RecordRefused
from .kafka_records import readable
from .offsets import Ranges

if TYPE_CHECKING:
    from typing_extensions import Self

#: Checks what deferred constraints would check at COMMIT. Rolled back, they are deferred again, and still to be checked.
_CHECK_DEFERRED = """
SAVEPOINT onceproof_deferred; SET CONSTRAINTS ALL IMMEDIATE; ROLLBACK TO SAVEPOINT onceproof_deferred;
RELEASE SAVEPOINT onceproof_deferred"""


def _of_a_row() -> tuple[type[psycopg.Error] | type[RecordRefused], ...]:
    """Errors that are due to a row: its values do not fit the columns (SQLSTATE class 22), or break a constraint (class 23)."""
    return (psycopg.DataError, psycopg.IntegrityError, RecordRefused)


_COLUMNS = "pipeline, query_id, batch_id, source, row_number, row_value, sqlstate, reason"


# json and not jsonb: that refuses NUL in a text, which is one of the reasons why a row is here.
_CREATE = """
CREATE TABLE IF NOT EXISTS {} (
  pipeline text NOT NULL,
  query_id text NOT NULL,
  batch_id bigint NOT NULL,
  source json NOT NULL,
  row_number bigint NOT NULL,
  row_value json NOT NULL,
  sqlstate text,
  reason text NOT NULL,
  refused_at timestamptz NOT NULL DEFAULT now()
)"""


class Rows(Protocol):
    """Rows in a fixed order, as a `pyarrow.Table`."""

    @property
    def num_rows(self) -> int: ...

    def slice(self, offset: int, length: int) -> Self: ...


@dataclass(frozen=True)
class Refused:
    number: int
    """The number of the row in its batch, from 0."""
    error: psycopg.Error | RecordRefused

    @property
    def sqlstate(self) -> str | None:
        return getattr(self.error, "sqlstate", None)


def put_accepted(
    connection: psycopg.Connection[Any],
    rows: Any,
    put: Callable[[psycopg.Connection[Any], Any], None],
    in_parts: Callable[[Any], Rows] = lambda rows: rows,
) -> list[Refused]:
    """Put all rows in their order, except those that are refused, which are returned. Must be in a transaction.

    ``in_parts`` turns ``rows`` into something that can be sliced. It is called only if a row is refused, within the transaction, and a
    second time if the batch is put again: what it did the first time is then rolled back.

    Without a refused row this is one ``put``. With one, its part of the batch is halved until the row is alone: of n rows,
    about 2 log2 n puts for each refused row. Deferred constraints, which would otherwise fail the whole batch when it is committed,
    are checked once all rows are put: rows may refer to each other. If one of them refuses a row, the batch is put again, and they are
    checked after each part: a row is then also refused if it refers to one that comes after its part.
    Raises what ``put`` raises for another reason.
    """
    try:
        with connection.transaction():
            refused = _put_in_parts(connection, rows, put, in_parts)
            connection.execute(_CHECK_DEFERRED)
            return refused
    except _of_a_row():
        return _put_in_parts(connection, rows, put, in_parts, check=True)


def _put_in_parts(
    connection: psycopg.Connection[Any],
    rows: Any,
    put: Callable[[psycopg.Connection[Any], Any], None],
    in_parts: Callable[[Any], Rows],
    *,
    check: bool = False,
) -> list[Refused]:
    """``check``: deferred constraints count after each part."""
    refused: list[Refused] = []
    parts, is_whole = [(0, rows.num_rows)], True
    while parts:
        first, count = parts.pop()
        try:
            with connection.transaction():  # a savepoint
                put(connection, rows if is_whole else rows.slice(first, count))
                if check:
                    connection.execute(_CHECK_DEFERRED)
        except _of_a_row() as error:
            if count == 0:
                raise
            if is_whole:
                rows, is_whole = in_parts(rows), False
            if count == 1:
                refused.append(Refused(first, error))
                continue
            half = count // 2
            parts += [(first + half, count - half), (first, half)]
    return refused


class DeadLetters:
    """The table of dead letters. Pipelines may share it."""

    def __init__(self, table: str, pipeline: str) -> None:
        self._table = sql.Identifier(*table.split("."))
        self._pipeline = pipeline

    def create(self) -> sql.Composed:
        """The statement that creates the table, if it does not exist."""
        return sql.SQL(_CREATE).format(self._table)

    def add(
        self,
        connection: psycopg.Connection[Any],
        query_id: str,
        ranges: Ranges,
        refused: list[Refused],
        row: Callable[[int], Mapping[str, Any]],
    ) -> None:
        """Insert the refused rows of a batch; ``row`` returns one by its number. Raises `psycopg.Error`."""
        source = json.dumps(ranges.by_partition())
        insert = sql.SQL("INSERT INTO {} ({}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)").format(
            self._table, sql.SQL(_COLUMNS)
        )
        with connection.cursor() as cursor:
            cursor.executemany(
                insert,
                [
                    (
                        self._pipeline,
                        query_id,
                        ranges.batch,
                        source,
                        one.number,
                        json.dumps(readable(row(one.number))),
                        one.sqlstate,
                        str(one.error),
                    )
                    for one in refused
                ],
            )

    def add_found(
        self,
        connection: psycopg.Connection[Any],
        query_id: str,
        ranges: Ranges,
        found: sql.Composed,
        values: Mapping[str, Any],
    ) -> int:
        """Insert the refused rows of a batch that are in the database. Returns how many there were.

        ``found`` is a SELECT of their numbers, the rows as JSON, the SQLSTATEs and the reasons, with ``values`` for its placeholders.
        Raises `psycopg.Error`.
        """
        insert = sql.SQL(
            "INSERT INTO {} ({}) SELECT %(pipeline)s, %(query_id)s, %(batch_id)s, %(source)s::json, found.* FROM ({}) AS found"
        ).format(self._table, sql.SQL(_COLUMNS), found)
        own = {
            "pipeline": self._pipeline,
            "query_id": query_id,
            "batch_id": ranges.batch,
            "source": json.dumps(ranges.by_partition()),
        }
        return connection.execute(insert, {**values, **own}).rowcount
