"""The scenario's own SQL, before it is run: one SELECT that knows nothing of the outputs and says the same each time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import duckdb

# What the pipeline did: an oracle that reads it expects whatever is there.
_OBSERVED = {"output", "snapshot"}

# Functions, and the words without parentheses that stand for some, whose value is another one at the next check.
_UNSTEADY = {"random", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "now", "today", "get_current_time"}
_UNSTEADY |= {"transaction_timestamp", "get_current_timestamp"}
_EXACT = {"DECIMAL", "HUGEINT"}
_UNSTEADY_WORDS = {"current_timestamp", "current_date", "current_time", "localtimestamp", "localtime"}


def select_problem(query: str) -> tuple[str, str | None] | None:
    """What makes this text no oracle's SELECT, as message and hint. DuckDB's own parser decides; nothing is run."""
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        return f"this is not SQL: {error}", None
    if len(statements) != 1:
        return f"one SELECT is wanted here, and there are {len(statements)} statements", "join them, or use WITH"
    if statements[0].type != duckdb.StatementType.SELECT:
        hint = "the oracle only reads: it says what must be there"
        return f"a SELECT is wanted here, not {statements[0].type.name}", hint
    for node in _nodes(_parsed(query)):
        table = (str(node.get("schema_name", "")).lower(), str(node.get("table_name", "")).lower())
        if node.get("type") == "BASE_TABLE" and table[0] == "history" and table[1] in _OBSERVED:
            why = f"it reads history.{table[1]}, which is what the pipeline wrote: whatever that is, it would be right"
            return why, "an oracle says from the input what must be there"
        if name := _unsteady(node):
            return f"{name} is another at each check, and so would be the verdict", "take it from the input"
    return None


def as_decimals(expression: str) -> set[str]:
    """The columns, in lower case, that a SELECT or an expression casts to DECIMAL or to whole numbers of 128 bits."""
    names = set()
    for query in (expression, f"SELECT (\n{expression}\n)"):
        for node in _nodes(_parsed(query)):
            child = node.get("child")
            if node.get("type") != "OPERATOR_CAST" or not isinstance(child, dict) or not child.get("column_names"):
                continue
            if any(str(inner.get("type_name", "")).upper() in _EXACT for inner in _nodes(node.get("type_expr"))):
                names.add(str(child["column_names"][-1]).lower())
    return names


@lru_cache(maxsize=128)
def _parsed(query: str) -> Any:
    """DuckDB's tree of a SELECT; None for the few that it cannot give (PIVOT)."""
    with duckdb.connect() as parser:
        row = parser.execute("SELECT json_serialize_sql($query::VARCHAR)", {"query": query}).fetchone()
    return json.loads(row[0]) if row else None


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for branch in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(branch)


def _unsteady(node: dict[str, Any]) -> str | None:
    name = str(node.get("function_name", "")).lower()
    if name in _UNSTEADY:
        return f"{name}()"
    words = node.get("column_names") or [""]
    word = str(words[0]).lower()
    return word if len(words) == 1 and word in _UNSTEADY_WORDS and node.get("class") == "COLUMN_REF" else None
