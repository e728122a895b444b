"""Reads which tables SQL statements create: names, columns and primary keys. For warnings and drafts; no statement is run.

DuckDB's parser does not know many types and clauses of Postgres, so the statements are only split into tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<skip>--[^\n]*|/\*.*?\*/|\s+)|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|'(?:[^']|'')*'|"(?:[^"]|"")*"|\w+|::|.""",
    re.DOTALL,
)
#: What a definition in the parentheses begins with if it is not that of a column.
_NO_COLUMN = {"PRIMARY", "UNIQUE", "CHECK", "FOREIGN", "EXCLUDE", "CONSTRAINT", "LIKE", "PERIOD"}
#: Values that differ from run to run: times, and numbers that the database gives out.
_VARYING = re.compile(
    r"DEFAULT \(*(NOW|CLOCK_TIMESTAMP|STATEMENT_TIMESTAMP|TRANSACTION_TIMESTAMP|TIMEOFDAY|CURRENT_\w+|LOCALTIME\w*"
    r"|NEXTVAL|GEN_RANDOM_UUID|UUIDV[47]|UUID_GENERATE_\w+|RANDOM|TXID_CURRENT|PG_CURRENT_XACT_ID)\b"
    r"|\b(BIG|SMALL)?SERIAL[248]?\b|\bAS IDENTITY\b"
)
#: Statements that create no table, in addition to `CREATE TABLE` itself.
_HARMLESS = re.compile(
    r"CREATE (UNIQUE )?(INDEX|SCHEMA|TYPE|DOMAIN|SEQUENCE|ROLE|USER|PUBLICATION) |INSERT |UPDATE |DELETE |GRANT |COMMENT "
    r"|ALTER TABLE (?!.* (RENAME|SET SCHEMA) )|BEGIN\b|COMMIT\b"
)


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
    parts, _ = _name(_tokens(name))
    return ".".join(parts[1:] if len(parts) > 1 and parts[0] == "public" else parts)


def created_tables(sql: str) -> list[CreatedTable]:
    """The tables of all ``CREATE TABLE`` statements."""
    return [table for statement in _statements(sql) if (table := _created(statement)) is not None]


def creates_only_these(sql: str) -> bool:
    """Whether no statement creates or renames a table in another way, so that `created_tables` lists them all."""
    return all(
        _created(statement) is not None or _HARMLESS.match(" ".join(statement).upper() + " ")
        for statement in _statements(sql)
    )


def _tokens(sql: str) -> list[str]:
    return [match[0] for match in _TOKEN.finditer(sql) if match["skip"] is None]


def _statements(sql: str) -> Iterator[list[str]]:
    yield from _split(_tokens(sql), ";")


def _split(tokens: Sequence[str], at: str) -> Iterator[list[str]]:
    """The parts between the tokens ``at`` that are not in parentheses, without empty ones."""
    part: list[str] = []
    depth = 0
    for word in tokens:
        depth += (word in "([") - (word in ")]")
        if word == at and depth == 0:
            if part:
                yield part
            part = []
        else:
            part.append(word)
    if part:
        yield part


def _identifier(word: str) -> str:
    return word[1:-1].replace('""', '"') if word.startswith('"') else word.lower()


def _name(tokens: Sequence[str]) -> tuple[list[str], Sequence[str]]:
    """The parts of the name at the beginning, and the tokens after it."""
    parts = [_identifier(word) for word in tokens[:1]]
    rest = tokens[1:]
    while len(rest) > 1 and rest[0] == ".":
        parts.append(_identifier(rest[1]))
        rest = rest[2:]
    return parts, rest


_CREATE = re.compile(r"CREATE (?:GLOBAL |LOCAL )?(?:TEMP |TEMPORARY |UNLOGGED )?TABLE (IF NOT EXISTS )?")


def _created(statement: Sequence[str]) -> CreatedTable | None:
    start = _CREATE.match(" ".join(statement[:9]).upper() + " ")
    if start is None:
        return None
    parts, rest = _name(statement[start[0].count(" ") :])
    name = ".".join(parts[1:] if len(parts) > 1 and parts[0] == "public" else parts)
    columns, key, varying = [], [], []
    for definition in _split(_parenthesised(rest), ","):
        words = [word.upper() for word in definition]
        at = next((i for i, word in enumerate(words) if words[i : i + 2] == ["PRIMARY", "KEY"]), None)
        if words[0] in _NO_COLUMN:
            if at is not None:
                key += [_identifier(word) for word in _parenthesised(definition[at + 2 :]) if word != ","]
            continue
        columns.append(_identifier(definition[0]))
        key += columns[-1:] if at is not None else []
        varying += columns[-1:] if _VARYING.search(" ".join(words)) else []
    return CreatedTable(name, tuple(columns), tuple(key), tuple(varying))


def _parenthesised(tokens: Sequence[str]) -> list[str]:
    """What is in the parentheses with which the tokens begin; nothing if they begin with another word."""
    if not tokens or tokens[0] != "(":
        return []
    depth = 0
    for number, word in enumerate(tokens):
        depth += (word == "(") - (word == ")")
        if depth == 0:
            return list(tokens[1:number])
    return list(tokens[1:])
