"""Reads Postgres outputs back after a run: the decoded commits of the slot, and a final snapshot that must agree with them.

Both are read over one connection, so that the same settings apply to the texts of both: ``pgoutput`` calls the types'
output functions in the session that peeks at the slot.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

from onceproof.base.errors import HistoryError
from onceproof.base.registry import suggest
from onceproof.history.writer import HistoryWriter
from onceproof.stack.api import Postgres
from onceproof.stores.postgres.pgoutput import Begin, Change, Commit, Decoder, Message, Row, Truncate

_FETCH = 2_000
# Text forms that do not depend on settings of the server or the role. The timeouts bound a collection that is blocked,
# for example by a lock that the job's backend still holds.
_SETTINGS = {
    "datestyle": "ISO, YMD",
    "timezone": "UTC",
    "intervalstyle": "iso_8601",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "statement_timeout": "300s",
    "lock_timeout": "30s",
}


class Rows(Protocol):
    """The part of the history writer that a snapshot uses."""

    def append(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None: ...


@dataclass(frozen=True)
class TableOutput:
    """A table that was read back, for ``run.json``."""

    columns: dict[str, str] | None
    """Column -> Postgres type; None if there is no such table."""
    note: str | None = None
    rows: int = 0
    generated: list[str] = field(default_factory=list)
    """Its generated columns. Those that are not in ``columns`` were not read."""


def collect_postgres(
    postgres: Postgres, tables: Mapping[str, str], writer: HistoryWriter, numbers: Iterator[int] | None = None
) -> dict[str, TableOutput]:
    """Write ``tables`` (output -> table name) to the history: ``commits``, ``output`` and ``snapshot``.

    ``numbers`` gives the commits their numbers, if the history also holds commits of other stores.

    A table that does not exist has no columns, and a note that names similar tables: perhaps the job ended before it created
    the table, perhaps the scenario misspells it.
    Raises `HistoryError` if the slot or a table cannot be read.
    """
    with reading(postgres.harness_conninfo) as connection:
        places = {output: _resolve(connection, table) for output, table in tables.items()}
        commits = _messages(connection, postgres.capture_name)
        _collect_commits(commits, _outputs_by_table(places), writer, numbers or itertools.count())
        decoded = _decoded_kinds(connection, postgres.capture_name)
        return {o: _collect_snapshot(connection, o, tables[o], place, writer, decoded) for o, place in places.items()}


def collect_snapshots(conninfo: str, tables: Mapping[str, str], writer: HistoryWriter) -> dict[str, TableOutput]:
    """Write ``tables`` (output -> table name) of any server to ``snapshot``, as of one moment, without their commits.

    Raises `HistoryError` for a table that does not exist or cannot be read.
    """
    with reading(conninfo) as connection:
        connection.read_only = True
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with connection.transaction():
            places = {output: _resolve(connection, table) for output, table in tables.items()}
            for output, place in places.items():
                if place is None:
                    near = suggest(tables[output], _table_names(connection))
                    raise HistoryError(
                        f"output {output!r} cannot be read: there is no table {tables[output]!r}", hint=near
                    )
            return {o: _collect_snapshot(connection, o, tables[o], p, writer, _ANY_KIND) for o, p in places.items()}


@contextmanager
def reading(conninfo: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection whose texts of values depend on no setting of the server. Raises `HistoryError`."""
    options = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in _SETTINGS.items())
    given = conninfo_to_dict(conninfo).get("options")  # for example the search path of a run on an external stack
    options = f"{given} {options}" if given else options
    try:
        with psycopg.connect(conninfo, options=options, connect_timeout=30) as connection:
            yield connection
    except psycopg.Error as error:
        # Only the message: the connection string holds a password.
        raise HistoryError(f"Postgres cannot be read back: {str(error).strip()}") from error


Place = tuple[str, str]
"""Schema and table."""


def _resolve(connection: psycopg.Connection[Any], table: str) -> Place | None:
    query = """SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE c.oid = to_regclass(%s)"""
    row = connection.execute(query, [table]).fetchone()
    return None if row is None else (row[0], row[1])


def _table_names(connection: psycopg.Connection[Any]) -> list[str]:
    """The tables and views that a user could mean, with their schema if they need it."""
    query = """SELECT CASE WHEN pg_table_is_visible(c.oid) THEN c.relname ELSE n.nspname || '.' || c.relname END
               FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
               ORDER BY 1"""
    return [name for (name,) in connection.execute(query)]


def _outputs_by_table(places: Mapping[str, Place | None]) -> dict[Place, list[str]]:
    """Table -> its outputs. Two sinks may keep their progress in one table."""
    found: dict[Place, list[str]] = {}
    for output, place in places.items():
        if place is not None:
            found.setdefault(place, []).append(output)
    return found


def _collect_commits(
    messages: Iterator[Message],
    outputs: Mapping[Place, list[str]],
    writer: HistoryWriter,
    numbers: Iterator[int],
) -> None:
    """Read the slot from its beginning. Peeking does not advance it, so a collection can be repeated."""
    order, changes = 0, 0
    begin = Begin(0, 0, 0)
    position = dict.fromkeys((output for names in outputs.values() for output in names), 0)
    for message in messages:
        if isinstance(message, Begin):
            begin, order, changes = message, next(numbers), 0
        elif isinstance(message, Commit):
            commit = {"commit_order": order, "xid": begin.xid, "lsn": begin.lsn, "commit_time_us": begin.commit_time_us}
            writer.append("commits", [{**commit, "changes": changes}])
        else:
            for place, op, before, after in _changes(message):
                changes += 1
                for output in outputs.get(place, ()):
                    change: dict[str, Any] = {
                        "output": output,
                        "op": op,
                        "offset": position[output],
                        "xid": begin.xid,
                        "commit_order": order,
                        "content": row_text(after),
                        "before": row_text(before),
                        "visibility": "committed",  # the slot decodes only committed transactions
                    }
                    writer.append("output", [change])
                    position[output] += 1


def _messages(connection: psycopg.Connection[Any], capture: str) -> Iterator[Message]:
    decoder = Decoder()
    query = sql.SQL(
        "SELECT data FROM pg_logical_slot_peek_binary_changes({}, NULL, NULL, 'proto_version', '1',"
        " 'publication_names', {})"
    ).format(capture, capture)
    with connection.cursor("onceproof_commits", binary=True, row_factory=tuple_row) as cursor:
        cursor.itersize = _FETCH
        cursor.execute(query)
        for (data,) in cursor:
            message = decoder.decode(data)
            if message is not None:
                yield message
    connection.commit()


def _changes(message: Change | Truncate) -> Iterator[tuple[Place, str, Row | None, Row | None]]:
    if isinstance(message, Truncate):
        for relation in message.relations:
            yield (relation.schema, relation.table), "truncate", None, None
    else:
        yield (message.relation.schema, message.relation.table), message.op, message.before, message.after


def collect_snapshot_of(
    connection: psycopg.Connection[Any], output: str, table: str, schema: str, capture: str, rows: Rows
) -> TableOutput:
    """Write one output's table in ``schema`` to ``snapshot``, with the columns that ``capture`` decodes. Raises `psycopg.Error`."""
    with connection.transaction():
        place = _resolve(connection, sql.Identifier(schema, table).as_string(connection))
        return _collect_snapshot(connection, output, table, place, rows, _decoded_kinds(connection, capture))


def _collect_snapshot(
    connection: psycopg.Connection[Any], output: str, table: str, place: Place | None, writer: Rows, kinds: str
) -> TableOutput:
    """``kinds``: which columns are read, as values of ``pg_attribute.attgenerated``; others only if they are not generated."""
    if place is None:
        near = suggest(table, _table_names(connection))
        return TableOutput(None, f"there is no table {table!r}: nothing created it, or it has another name ({near})")
    every = _columns(connection, place)
    columns = {name: sql_type for name, (sql_type, kind) in every.items() if kind in kinds}
    generated = [name for name, (_, kind) in every.items() if kind]
    # format() calls the type's output function, as pgoutput does. A cast to text does not: it gives 'true', and char(n)
    # without blanks.
    text = sql.SQL("CASE WHEN {0} IS NOT DISTINCT FROM NULL THEN NULL ELSE format('%s', {0}) END")
    fields = sql.SQL(", ").join(text.format(sql.Identifier(name)) for name in columns)
    query = sql.SQL("SELECT {} FROM {}").format(fields, sql.Identifier(*place))
    rows = 0
    with connection.cursor("onceproof_snapshot", row_factory=tuple_row) as cursor:
        cursor.itersize = _FETCH
        cursor.execute(query)
        for values in cursor:
            content = row_text(dict(zip(columns, values, strict=True)))
            writer.append("snapshot", [{"output": output, "content": content}])
            rows += 1
    return TableOutput(columns, None, rows, generated)


#: The kinds of generated columns: stored, and since Postgres 18 virtual.
_ANY_KIND = "sv"


def _decoded_kinds(connection: psycopg.Connection[Any], capture: str) -> str:
    """Which kinds of generated columns the commits of this publication have: stored ones since Postgres 18, or none.

    A snapshot must have the same columns as the commits, or the two never agree.
    """
    query = "SELECT to_jsonb(p)->>'pubgencols' FROM pg_publication p WHERE pubname = %s"  # no such column before 18
    row = connection.execute(query, [capture]).fetchone()
    return "s" if row == ("s",) else ""


def _columns(connection: psycopg.Connection[Any], place: Place) -> dict[str, tuple[str, str]]:
    """Column -> its type, and the kind of generated column that it is: ``s`` (stored), ``v`` (virtual), or empty. In order."""
    query = """SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attgenerated::text FROM pg_attribute a
               JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped
               ORDER BY a.attnum"""
    return {name: (sql_type, kind) for name, sql_type, kind in connection.execute(query, place)}


def row_text(row: Row | None) -> str | None:
    """The text of a row, the same in ``output`` and ``snapshot``, because the two are compared as text."""
    return None if row is None else json.dumps(row, ensure_ascii=False, separators=(",", ":"))
