"""What a reader of the outputs sees after the run: the table ``judge.effects``.

Kafka: the records that read_committed shows. Postgres: the rows of the snapshot. Each row is attributed to the commit
that made it by replaying the decoded changes, and only if these replay to exactly the snapshot (as a multiset); else
the rows stand without positions, and what needs positions is not evaluated.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from onceproof.judge.canonical import canonical, document, literal, quote
from onceproof.judge.witness import times

if TYPE_CHECKING:
    from onceproof.judge.case import Case

# Rows with their commit: a row that is deleted or replaced cancels the oldest equal row that stood before it, so of
# equal rows the newest survive. A truncate ends everything before it.
_SURVIVORS = """
    WITH changes AS (
        SELECT * FROM history.output
        WHERE output = $output AND "offset" > coalesce(
            (SELECT max("offset") FROM history.output WHERE output = $output AND op = 'truncate'), -1)),
    gone AS (SELECT before AS content, count(*) AS times FROM changes WHERE op IN ('update', 'delete') GROUP BY before),
    made AS (
        SELECT content, "offset", xid, commit_order,
               row_number() OVER (PARTITION BY content ORDER BY "offset") AS nth
        FROM changes WHERE op IN ('insert', 'update'))
    SELECT m.content, NULL::INTEGER AS "partition", m."offset", m.xid, m.commit_order
    FROM made m LEFT JOIN gone g USING (content) WHERE m.nth > coalesce(g.times, 0)"""

_INSERTS = """
    SELECT content, NULL::INTEGER AS "partition", "offset", xid, commit_order FROM history.output WHERE output = $output"""

_SNAPSHOT = """
    SELECT content, NULL::INTEGER AS "partition", NULL::BIGINT AS "offset", NULL::BIGINT AS xid, NULL::BIGINT AS commit_order
    FROM history.snapshot WHERE output = $output"""

_RECORDS = """
    SELECT content, "partition", "offset", xid, commit_order
    FROM history.output WHERE output = $output AND visibility = 'committed'"""


def load(case: Case) -> None:
    """Fill ``judge.effects``; outputs that cannot be judged go to ``case.unreadable`` with the reason."""
    case.sql("""CREATE TABLE judge.effect_rows (output VARCHAR, id VARCHAR, content VARCHAR,
                "partition" INTEGER, "offset" BIGINT, xid BIGINT, commit_order BIGINT)""")
    named = []
    for output, spec in case.scenario.outputs.items():
        named.append(f"({literal(output)}, {literal(spec.topic or spec.table or output)})")
        source = _postgres_source(case, output) if spec.table is not None else _RECORDS
        problem = _undecodable(case, output, source) or _unnamed_columns(case, output, source)
        if problem is not None:
            case.unreadable[output] = problem
            # Or else every effect that was expected here would seem lost.
            case.sql("DELETE FROM judge.expected WHERE output = $output", {"output": output})
            case.expectations.pop(output, None)
        elif output in case.expectations:
            _insert(case, output, source)
    case.sql(f"CREATE TABLE judge.outputs AS SELECT * FROM (VALUES {', '.join(named)}) t(output, named)")  # noqa: S608
    case.sql("""CREATE VIEW judge.effects AS
        SELECT e.*, coalesce("partition", -1) AS lane, coalesce(commit_order, "offset") AS pos,
               CASE WHEN "partition" IS NOT NULL THEN named || '/' || "partition" || '@' || "offset"
                    WHEN xid IS NOT NULL THEN named || ' xid ' || xid ELSE named END AS place
        FROM judge.effect_rows e JOIN judge.outputs USING (output)""")


def _postgres_source(case: Case, output: str) -> str:
    query = """SELECT count(*) FILTER (op <> 'insert') > 0 AS changed,
                      count(*) FILTER (op IN ('update', 'delete') AND before IS NULL) AS blind
               FROM history.output WHERE output = $output"""
    row = case.rows(query, {"output": output})[0]
    source = _SURVIVORS if row["changed"] else _INSERTS
    if row["blind"]:
        case.no_stream[output] = f"{row['blind']} decoded changes of it do not say which row they changed"
    elif _digest(case, source, output) != _digest(case, _SNAPSHOT, output):
        case.no_stream[output] = "its decoded commits do not replay to its snapshot (an unlogged table, or DDL)"
    return _SNAPSHOT if output in case.no_stream else source


def _digest(case: Case, source: str, output: str) -> tuple[object, ...]:
    """Count and two independent 64-bit hashes, summed exactly: equal for equal multisets, in flat memory."""
    query = f"SELECT count(*), sum(hash(content)), sum(md5_number_lower(content)::HUGEINT) FROM ({source})"  # noqa: S608
    return tuple(case.sql(query, {"output": output}).fetchone() or ())


def _undecodable(case: Case, output: str, source: str) -> str | None:
    broken = "content IS NULL OR NOT json_valid(content) OR json_type(content) <> 'OBJECT'"
    query = f"""SELECT count(*) AS n, min_by("partition" || '@' || "offset", ("partition", "offset")) AS first
                FROM ({source}) WHERE {broken}"""  # noqa: S608
    row = case.rows(query, {"output": output})[0]
    if not row["n"]:
        return None
    count, topic = times(row["n"], "effect"), case.scenario.outputs[output].topic
    return f"{count} of it without a JSON object as value, the first at {topic}/{row['first']}"


def _unnamed_columns(case: Case, output: str, source: str) -> str | None:
    """Columns that the output has and the oracle is silent about: nobody would notice if they were wrong."""
    expectation = case.expectations.get(output)
    if expectation is None or not expectation.whole:
        return None
    query = f"SELECT DISTINCT unnest(json_keys(content)) FROM ({source})"  # noqa: S608
    found = {row[0] for row in case.sql(query, {"output": output}).fetchall()}
    known = {*expectation.columns, *case.scenario.outputs[output].ignore}
    if not (extra := sorted(found - known)):
        return None
    return f"the oracle says nothing of its columns {', '.join(extra)}: select them in the oracle's query, or list them under ignore"


def _insert(case: Case, output: str, source: str) -> None:
    columns = case.expectations[output].columns
    structure = "{" + ", ".join(f'{json.dumps(name)}: "VARCHAR"' for name in columns) + "}"
    texts = {name: canonical(sql_type, f"f.{quote(name)}") for name, sql_type in columns.items()}
    identity = case.scenario.outputs[output].identity
    case.sql(
        f"""INSERT INTO judge.effect_rows
            SELECT {literal(output)}, {document({n: texts[n] for n in identity})}, {document(texts)},
                   "partition", "offset", xid, commit_order
            FROM (SELECT *, json_transform(content, {literal(structure)}) AS f FROM ({source}))""",  # noqa: S608
        {"output": output},
    )
