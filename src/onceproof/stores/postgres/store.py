"""Postgres as a store: tables. Commits are read back from a logical slot, rows from a final snapshot."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import asdict

import psycopg
from psycopg import sql

from onceproof.history.run_record import OutputRecord
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.problem import Complaint
from onceproof.stack.api import Postgres, Stack
from onceproof.stores.contract import ReadBack, State, Words, stores
from onceproof.stores.postgres.frames import PostgresFrames
from onceproof.stores.postgres.read_back import collect_postgres
from onceproof.stores.postgres.transactions import ASK_S

_TABLES = """
    SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%%'
      AND (%(schema)s::text IS NULL OR n.nspname = %(schema)s::text) ORDER BY 1, 2"""

#: A stopped job may hold a lock on a table: the state is then unknown, and nothing waits for it.
_LIMITS = ("SET lock_timeout = '2s'", "SET statement_timeout = '30s'")
_NAME_PART = re.compile(r'"((?:[^"]|"")*)"|([^".]+)')


class PostgresStore:
    """Implements `onceproof.stores.contract.Store` and `HasFrames`."""

    about = "a Postgres table"
    field = "table"
    Spec = OutputSpec
    words = Words("row", "table", "xid", "written by transaction", "Postgres")
    frames = PostgresFrames()

    def problems(self, scenario: Scenario, spec: OutputSpec) -> Iterator[Complaint]:
        if scenario.stack.postgres is None:
            message = f"output table {spec.table!r} needs a Postgres, and the stack has none"
            yield Complaint(("table",), message, "add 'postgres: {}' under stack")

    def address(self, spec: OutputSpec, stack: Stack) -> str:
        return spec.place

    def name(self, spec: OutputSpec) -> str:
        """The table as Postgres names it, with its schema unless that is ``public``."""
        parts = [
            quoted.replace('""', '"') if quoted else bare.lower() for quoted, bare in _NAME_PART.findall(spec.place)
        ]
        return _named("public" if len(parts) < 2 else parts[-2], parts[-1], "public")

    def state(self, stack: Stack, outputs: Collection[OutputSpec] | None) -> State:
        if stack.postgres is None or (outputs is not None and not outputs):
            return {}
        held = _tables(stack.postgres)
        return held if outputs is None else {name: held[name] for name in map(self.name, outputs) if name in held}

    def read_back(self, run: ReadBack) -> dict[str, OutputRecord]:
        """Also reads the tables in which sinks keep their own progress, as ``OUTPUT#progress``."""
        if run.stack.postgres is None:
            return {}
        tables = tables_of(run.scenario)
        found = collect_postgres(run.stack.postgres, tables, run.writer, run.commits)
        return {name: OutputRecord(**asdict(table)) for name, table in found.items()}


def tables_of(scenario: Scenario) -> dict[str, str]:
    """Output -> its table; ``OUTPUT#progress`` -> the table in which the output's sink keeps its own progress."""
    tables = {name: spec.table for name, spec in scenario.outputs.items() if spec.table is not None}
    for name, spec in scenario.outputs.items():
        if spec.progress is not None:
            tables[f"{name}#progress"] = spec.progress.table
    return tables


def _tables(postgres: Postgres) -> dict[str, str]:
    """Name, as `PostgresStore.name` has it -> what the table holds. Raises `psycopg.Error`, also after a limit of `_LIMITS`."""
    held: dict[str, str] = {}
    with psycopg.connect(postgres.harness_conninfo, connect_timeout=int(ASK_S), autocommit=True) as connection:
        for limit in _LIMITS:
            connection.execute(limit)
        for schema, table in connection.execute(_TABLES, {"schema": postgres.schema}).fetchall():
            # xmin: also changes when a row is rewritten, which the number of rows does not show.
            query = sql.SQL("SELECT count(*), coalesce(max(xmin::text::bigint), 0) FROM {}").format(
                sql.Identifier(schema, table)
            )
            rows, newest = connection.execute(query).fetchone() or (0, 0)
            held[_named(schema, table, postgres.schema or "public")] = (
                f"{rows} rows (the newest of transaction {newest})"
            )
    return held


def _named(schema: str, table: str, usual: str) -> str:
    return f"table {table}" if schema == usual else f"table {schema}.{table}"


stores.register("postgres")(PostgresStore())
