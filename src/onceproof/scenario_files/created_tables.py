"""Reads which tables SQL statements create: names, columns and primary keys. For warnings and drafts; no statement is run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlglot import ErrorLevel, exp

_SERIAL = frozenset({"SERIAL", "BIGSERIAL", "SMALLSERIAL"})


@dataclass(frozen=True)
class CreatedTable:
    """A table that a statement creates."""

    name: str
    """As `folded` gives it."""
    columns: tuple[str, ...] = ()
    """Empty if the statement does not list them."""
    key: tuple[str, ...] = ()
    """The columns of its primary key."""
    varying: tuple[str, ...] = ()
    """Columns that get a time or a number of the database if the job gives no value."""


def folded(name: str) -> str:
    """A table's name as Postgres stores it: in lower case unless quoted, without the schema ``public``."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        return _name(exp.to_table(name, dialect="postgres"))
    except SqlglotError:  # it cannot be the name of a table: Postgres will say so
        return name


def created_tables(sql: str) -> list[CreatedTable]:
    """The tables of all ``CREATE TABLE`` statements. A statement that cannot be parsed is read as far as possible.

    Of a text that cannot be split into statements, such as one with an open quote, nothing is read.
    """
    from sqlglot import ErrorLevel, exp

    found: dict[str, CreatedTable] = {}
    for statement in _parsed(sql, ErrorLevel.IGNORE) or ():
        if _creates_table(statement):
            table = _created(statement)
            found[table.name] = table
        elif isinstance(statement, exp.Alter) and (key := _key(statement)):  # as pg_dump writes a primary key
            name = _name(statement.find(exp.Table))
            found |= {name: replace(found[name], key=key)} if name in found else {}
    return list(found.values())


def creates_only_these(sql: str) -> bool:
    """Whether no statement creates or renames a table in another way, so that `created_tables` lists them all."""
    from sqlglot import ErrorLevel

    statements = _parsed(sql, ErrorLevel.RAISE)
    return statements is not None and not any(map(_may_create_another, statements))


def _may_create_another(statement: exp.Expr) -> bool:
    from sqlglot import exp

    if isinstance(statement, exp.Command):  # what sqlglot does not know, it keeps as text
        words = statement.sql("postgres").upper()
        moves = " RENAME " in words or " SET SCHEMA " in words
        return moves or not words.startswith(("ALTER TABLE", "CREATE PUBLICATION"))
    if isinstance(statement, exp.Create) and statement.kind in ("VIEW", "FUNCTION", "PROCEDURE"):
        return True
    return any(statement.find_all(exp.AlterRename, exp.Into))


def _parsed(sql: str, level: ErrorLevel) -> list[exp.Expr] | None:
    """The statements; None if they cannot be parsed. Postgres says what is wrong when it runs them."""
    import sqlglot
    from sqlglot.errors import SqlglotError

    with _quiet():
        try:
            return [one for one in sqlglot.parse(sql, read="postgres", error_level=level) if one is not None]
        except SqlglotError:
            return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without sqlglot's warnings about statements that it keeps as text."""
    logger = logging.getLogger("sqlglot")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _creates_table(statement: exp.Expr) -> bool:
    from sqlglot import exp

    return isinstance(statement, exp.Create) and statement.kind == "TABLE"


def _created(statement: exp.Expr) -> CreatedTable:
    from sqlglot import exp

    schema = statement.this if isinstance(statement.this, exp.Schema) else None
    columns = [] if schema is None else [one for one in schema.expressions if isinstance(one, exp.ColumnDef)]
    return CreatedTable(
        _name(statement.find(exp.Table)),
        tuple(_identifier(column.this) for column in columns),
        _key(statement) or tuple(_identifier(c.this) for c in columns if c.find(exp.PrimaryKeyColumnConstraint)),
        tuple(_identifier(column.this) for column in columns if _varies(column)),
    )


def _key(statement: exp.Expr) -> tuple[str, ...]:
    from sqlglot import exp

    key = statement.find(exp.PrimaryKey)
    return () if key is None else tuple(_identifier(column) for column in key.find_all(exp.Identifier))


def _varies(column: exp.ColumnDef) -> bool:
    from sqlglot import exp

    kind = column.args.get("kind")
    if column.find(exp.GeneratedAsIdentityColumnConstraint) or (kind and kind.sql("postgres") in _SERIAL):
        return True
    default = column.find(exp.DefaultColumnConstraint)
    # A function of the database is taken for one that gives another value each time: now(), nextval(...), gen_random_uuid().
    called = (
        [] if default is None else [f for f in default.find_all(exp.Func) if not isinstance(f, exp.Cast | exp.Array)]
    )
    return bool(called)


def _name(table: exp.Table | None) -> str:
    parts = [] if table is None else [_identifier(part) for part in table.parts]
    return ".".join(parts[1:] if len(parts) > 1 and parts[0] == "public" else parts)


def _identifier(name: exp.Expr) -> str:
    text: str = name.name
    return text if name.args.get("quoted") else text.lower()
