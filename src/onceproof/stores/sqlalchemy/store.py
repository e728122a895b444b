"""A table of any database that SQLAlchemy can read. Its rows are read back after the run, its commits cannot be.

The database is not part of the stack: the harness connects to it straight, with the URL from an environment variable.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from pydantic import Field

from onceproof.base.errors import EnvironmentProblem, HistoryError
from onceproof.base.words import times
from onceproof.history.run_record import OutputRecord
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.problem import Complaint, shown
from onceproof.stack.api import Stack
from onceproof.stores.contract import ReadBack, State, Words, stores
from onceproof.values import foreign_files

if TYPE_CHECKING:
    from onceproof.stores.sqlalchemy.database import Database

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ROWS = 2_000
_BIT = re.compile(r"(?:TINYINT\(1\)|BIT\(1\)|BIT|BOOL|BOOLEAN)(?:\s|$)", re.IGNORECASE)


class SqlTableOutput(OutputSpec):
    sql_table: str = Field(description="the output is this table of a database that SQLAlchemy can read")
    url_env: str = Field(
        description="environment variable with the database's SQLAlchemy URL, DIALECT+DRIVER://USER:PASSWORD@HOST:PORT/DATABASE"
    )
    clear: bool = Field(
        False,
        description="true: delete all rows of the table before the job starts; false: refuse to run if the table has rows",
    )

    @property
    def place(self) -> str:
        return self.sql_table


class SqlAlchemyStore:
    """Implements `onceproof.stores.contract.Store`, `SnapshotOnly`, `OutsideStack` and `StoresBits`."""

    about = "a table of any database that SQLAlchemy can read"
    field = "sql_table"
    Spec = SqlTableOutput
    words = Words("row", "table")
    no_commits = "its store gives a final snapshot only, so its commits are unknown"

    def problems(self, scenario: Scenario, spec: OutputSpec) -> Iterator[Complaint]:
        assert isinstance(spec, SqlTableOutput), "the store's own model"
        if not spec.place.strip(".") or any(not part for part in spec.place.split(".")):
            yield Complaint(
                ("sql_table",), f"{shown(spec.place)} cannot be the name of a table", "TABLE or SCHEMA.TABLE"
            )
        if not _VARIABLE.fullmatch(spec.url_env):
            # Perhaps the URL itself, so it is not shown.
            message = "url_env is not the name of an environment variable"
            yield Complaint(("url_env",), message, "export the URL in a variable, and write the variable's name")
        elif spec.url_env not in scenario.pipeline.secrets:
            message = (
                f"url_env {spec.url_env!r} is not under pipeline: secrets, so the password in it would not be masked"
            )
            yield Complaint(("url_env",), message, f"add it: pipeline: {{secrets: [{spec.url_env}]}}")
        if spec.kind == "changelog":
            message = "kind changelog needs each change of the table, and this store gives only the final rows"
            yield Complaint(("kind",), message, "write kind: upsert")
        if spec.progress is not None:
            message = "progress is read from the stack's Postgres, and this output is in another database"
            yield Complaint(("progress",), message, "remove it", at_key=True)

    def address(self, spec: OutputSpec, stack: Stack) -> str:
        return spec.place

    def name(self, spec: OutputSpec) -> str:
        assert isinstance(spec, SqlTableOutput), "the store's own model"
        return f"table {spec.place} of {spec.url_env}"

    def state(self, stack: Stack, outputs: Collection[OutputSpec] | None) -> State:
        """The number of rows. Without ``outputs`` nothing: the database may hold tables that are not the run's."""
        held: dict[str, str] = {}
        for variable, named in _by_database({self.name(spec): spec for spec in outputs or ()}).items():
            with _open(variable) as database:
                held |= {name: times(database.count(spec.place), "row") for name, spec in named.items()}
        return held

    def preparation(self, spec: OutputSpec) -> str:
        assert isinstance(spec, SqlTableOutput), "the store's own model"
        then = "its rows are deleted before the job starts" if spec.clear else "it must be empty when the run starts"
        return f"in the database of {spec.url_env}; {then}"

    def is_bit(self, column_type: str) -> bool:
        """MySQL and MariaDB declare BOOLEAN as TINYINT(1); SQLite keeps the name, and both give numbers."""
        return _BIT.match(column_type) is not None

    def make_ready(self, outputs: Mapping[str, OutputSpec]) -> None:
        """Every table must exist and be empty: rows of an earlier run would count as rows of this one.

        Nothing is deleted before all databases and tables were found.
        """
        for delete in (False, True):
            for variable, named in _by_database(outputs).items():
                with _open(variable) as database:
                    for name, spec in named.items():
                        _empty(database, name, spec, delete=delete)

    def read_back(self, run: ReadBack) -> dict[str, OutputRecord]:
        found: dict[str, OutputRecord] = {}
        for variable, named in _by_database(run.outputs(self)).items():
            try:
                with _open(variable) as database:
                    found |= {name: _collect(database, run, name, spec) for name, spec in named.items()}
            except EnvironmentProblem as problem:
                raise HistoryError(
                    f"the outputs cannot be read back: {problem.message}", hint=problem.hint
                ) from problem
        return found


def _by_database(outputs: Mapping[str, OutputSpec]) -> dict[str, dict[str, SqlTableOutput]]:
    """Environment variable -> the outputs in its database."""
    found: dict[str, dict[str, SqlTableOutput]] = {}
    for name, spec in outputs.items():
        if isinstance(spec, SqlTableOutput):
            found.setdefault(spec.url_env, {})[name] = spec
    return found


def _open(variable: str) -> Database:
    from onceproof.stores.sqlalchemy.database import (
        Database,
    )  # a command that needs no database starts without SQLAlchemy

    return Database(variable)


def _empty(database: Database, name: str, spec: SqlTableOutput, *, delete: bool) -> None:
    """Raise `EnvironmentProblem` if the table is missing, or has rows that may not be deleted. Delete them if ``delete``."""
    rows = database.count(spec.place)
    if rows and not spec.clear:
        raise EnvironmentProblem(
            f"output {name!r}: table {spec.place!r} in {database} already has {times(rows, 'row')}, which would count as "
            "written by the job",
            hint=f"empty it, or let onceproof delete its rows: outputs: {{{name}: {{clear: true}}}}",
        )
    if rows and delete:
        database.delete_rows(spec.place)


def _collect(database: Database, run: ReadBack, name: str, spec: SqlTableOutput) -> OutputRecord:
    number = 0

    def rows() -> Iterator[dict[str, str | None]]:
        nonlocal number
        for row in database.rows(spec.place, at_once=_ROWS):
            number += 1
            yield {"output": name, "content": foreign_files.as_json(row)}

    columns = database.columns(spec.place)
    run.writer.append("snapshot", rows())
    return OutputRecord.model_validate({"columns": columns, "note": None, "rows": number})


stores.register("sqlalchemy")(SqlAlchemyStore())
