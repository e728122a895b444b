"""Many executions on one Postgres: each has a schema of its own, which also identifies its commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from onceproof.base.errors import EnvironmentProblem, HistoryError
from onceproof.history.memory import MemoryTables
from onceproof.stack.api import Postgres
from onceproof.stores.postgres.pgoutput import Begin, Change, Commit, Decoder, Message
from onceproof.stores.postgres.read_back import TableOutput, collect_snapshot_of, reading, row_text


@dataclass
class _Open:
    """What was read so far of one execution's commits."""

    tables: Mapping[str, list[str]]
    """Table -> its outputs."""
    found: MemoryTables = field(default_factory=MemoryTables)
    positions: dict[str, int] = field(default_factory=dict)
    commits: int = 0


class Compartments:
    """Creates a schema per execution, and reads back what each committed. Not thread-safe.

    ``tables``: output -> its table, as the scenario names it, without a schema. ``statements``: the SQL that prepares a schema.
    """

    def __init__(self, postgres: Postgres, tables: Mapping[str, str], statements: str) -> None:
        self._postgres = postgres
        self._tables = dict(tables)
        self._by_table: dict[str, list[str]] = {}
        for output, table in tables.items():
            self._by_table.setdefault(table, []).append(output)
        self._statements = statements
        self._decoder = Decoder()
        self._open: dict[str, _Open] = {}
        self._closing = ExitStack()
        self._client: psycopg.Connection[Any]
        self._reader: psycopg.Connection[Any]

    def __enter__(self) -> Self:
        """Connect. Raises `EnvironmentProblem` and `HistoryError`."""
        uri, passfile = self._postgres.client_uri, str(self._postgres.passfile)
        try:
            self._client = psycopg.connect(uri, passfile=passfile, autocommit=True)
        except psycopg.Error as refused:
            raise EnvironmentProblem(f"Postgres cannot be reached: {refused}") from refused
        self._closing.callback(self._client.close)
        self._reader = self._closing.enter_context(reading(self._postgres.harness_conninfo))
        self._reader.commit()
        self._reader.autocommit = True
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def create(self, name: str) -> None:
        """Make the schema ``name`` and prepare it. Raises `EnvironmentProblem` if Postgres refuses."""
        schema = sql.Identifier(name)
        text = sql.SQL("CREATE SCHEMA {}; SET search_path = {};").format(schema, schema).as_bytes(self._client)
        try:
            self._client.execute(text + self._statements.encode())
        except psycopg.Error as refused:
            raise EnvironmentProblem(
                f"Postgres refused pipeline.prepare.sql: {refused}",
                hint="the statements run as the pipeline's own user, in a schema of each schedule",
            ) from refused
        self._open[name] = _Open(self._by_table)

    def uri(self, name: str) -> str:
        """The job's URI, with which unqualified names are those of the schema."""
        return f"{self._postgres.client_uri}?options={quote(f'-csearch_path={name}', safe='')}"

    def jdbc_url(self, name: str) -> str:
        return f"{self._postgres.jdbc_url}&currentSchema={name}"

    def read(self) -> None:
        """Read all commits since the last call, of all executions."""
        begin, changes = Begin(0, 0, 0), dict[str, list[tuple[str, Change]]]()
        for message in self._messages():
            if isinstance(message, Begin):
                begin, changes = message, {}
            elif isinstance(message, Commit):
                for name, rows in changes.items():
                    self._commit(self._open[name], begin, rows)
            elif isinstance(message, Change):
                if message.relation.schema in self._open:
                    changes.setdefault(message.relation.schema, []).append((message.relation.table, message))
            else:
                raise HistoryError("a job truncated a table: the warm tier does not read that")

    def take(self, name: str) -> tuple[MemoryTables, dict[str, TableOutput]]:
        """What the execution committed, up to the last `read`, with a snapshot of its tables. Its schema stays.

        The tables are as `onceproof.stores.postgres.read_back` writes them. Raises `HistoryError`.
        """
        done = self._open.pop(name)
        outputs = {
            output: collect_snapshot_of(self._reader, output, table, name, self._postgres.capture_name, done.found)
            for output, table in self._tables.items()
        }
        return done.found, outputs

    def _commit(self, of: _Open, begin: Begin, rows: list[tuple[str, Change]]) -> None:
        number, of.commits = of.commits, of.commits + 1
        commit = {"commit_order": number, "xid": begin.xid, "lsn": begin.lsn, "commit_time_us": begin.commit_time_us}
        of.found.append("commits", [{**commit, "changes": len(rows)}])
        for table, change in rows:
            for output in of.tables.get(table, ()):
                position = of.positions.get(output, 0)
                of.positions[output] = position + 1
                row: dict[str, Any] = {
                    "output": output,
                    "op": change.op,
                    "offset": position,
                    "xid": begin.xid,
                    "commit_order": number,
                    "content": row_text(change.after),
                    "before": row_text(change.before),
                    "visibility": "committed",
                }
                of.found.append("output", [row])

    def _messages(self) -> Iterator[Message]:
        name = self._postgres.capture_name
        # Not peeking: the slot would decode all earlier schedules again each time.
        query = sql.SQL(
            "SELECT data FROM pg_logical_slot_get_binary_changes({}, NULL, NULL, 'proto_version', '1',"
            " 'publication_names', {})"
        ).format(name, name)
        with self._reader.cursor(binary=True) as cursor:
            for (data,) in cursor.execute(query):
                message = self._decoder.decode(data)
                if message is not None:
                    yield message
