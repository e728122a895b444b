"""The scenario's own SQL, before it is run: one SELECT and nothing else."""

from __future__ import annotations

import duckdb


def select_problem(query: str) -> tuple[str, str | None] | None:
    """What makes this text no single SELECT, as message and hint. DuckDB's own parser decides; nothing is run."""
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as error:
        return f"this is not SQL: {error}", None
    if len(statements) != 1:
        return f"one SELECT is wanted here, and there are {len(statements)} statements", "join them, or use WITH"
    if statements[0].type != duckdb.StatementType.SELECT:
        hint = "the oracle only reads: it says what must be there"
        return f"a SELECT is wanted here, not {statements[0].type.name}", hint
    return None
