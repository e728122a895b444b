"""Views over a stored history: the observed tables, and the input as the scenario's SQL sees it.

**Decoded views.** For each input topic a view of the topic's name over its *committed* records: one column for each
field that occurs in any of its JSON object values, plus ``_topic``, ``_partition``, ``_offset``, ``_key`` (text; bytes
that are not UTF-8 are escaped as ``\\xNN``), ``_timestamp_ms`` and ``_value`` (the bytes). Types come from all values,
not from a sample: integer -> BIGINT (one beyond 64 bits makes the oracle fail), any other number -> DOUBLE, true/false -> BOOLEAN,
string -> VARCHAR, object -> STRUCT, array -> LIST, different things in different records -> JSON, nothing but null ->
VARCHAR. A record whose value is null or no JSON object has NULL in all of them. A view takes precedence over
``input`` where a topic has that name; the bytes are then found in ``history.input``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import duckdb

from onceproof.judge.canonical import literal, quote
from onceproof.judge.checker import NotEvaluated

if TYPE_CHECKING:
    from onceproof.judge.case import Case

_META = ("_topic", "_partition", "_offset", "_key", "_timestamp_ms", "_value")


def observed(case: Case) -> None:
    """The tables of the history as they are, and what follows from them alone."""
    case.sql("CREATE SCHEMA history")
    case.sql("CREATE SCHEMA judge")
    for name, path in case.history.tables.items():
        case.sql(f"CREATE VIEW history.{quote(name)} AS SELECT * FROM read_parquet({literal(str(path))})")  # noqa: S608
    case.sql("CREATE VIEW input AS SELECT * EXCLUDE (committed) FROM history.input WHERE committed")
    _batches(case)


def decoded(case: Case) -> None:
    """What the oracle reads. Raises `NotEvaluated` for values that cannot be made columns."""
    for name, path in case.history.static.items():
        case.sql(f"CREATE VIEW {quote(name)} AS SELECT * FROM read_parquet({literal(str(path))})")  # noqa: S608
    for spec in case.scenario.input:
        _decoded(case, spec.topic)


def _decoded(case: Case, topic: str) -> None:
    meta = """topic AS _topic, "partition" AS _partition, "offset" AS _offset,
               coalesce(TRY(decode("key")), "key"::VARCHAR) AS _key, timestamp_ms AS _timestamp_ms, "value" AS _value"""
    text = """TRY(decode("value"))"""
    found = f"CASE WHEN json_valid({text}) AND json_type({text}) = 'OBJECT' THEN {text}::JSON END"
    source = f"FROM history.input WHERE committed AND topic = {literal(topic)}"
    fields: Any = {}
    # Distinct ones, merged here: DuckDB's own aggregate keeps every value in memory until it is done.
    structures = case.sql(f"SELECT DISTINCT json_structure({found}) {source}")
    while row := structures.fetchone():
        fields = fields if row[0] is None else _merged(fields, json.loads(row[0]))
    fields = _named(fields)
    fields = {name: kind for name, kind in fields.items() if name.lower() not in _META}
    columns = [meta]
    if fields:
        source = f"FROM (SELECT *, json_transform({found}, {literal(json.dumps(fields))}) AS fields {source})"
        columns += [_column(name, kind) for name, kind in fields.items()]
    try:
        case.sql(f"CREATE OR REPLACE VIEW {quote(topic)} AS SELECT {', '.join(columns)} {source}")
    except duckdb.Error as error:
        raise NotEvaluated(f"the values of topic {topic!r} cannot be made columns: {error}") from error


def _column(name: str, kind: Any) -> str:
    # Signed, for a difference of unsigned integers would overflow; and a cast that fails rather than give NULL.
    value = f"fields.{quote(name)}"
    return f"{value}::BIGINT AS {quote(name)}" if kind in ("UBIGINT", "HUGEINT") else f"{value} AS {quote(name)}"


def _merged(one: Any, other: Any) -> Any:
    """The structure that holds both (DuckDB's names: ``{"a": "UBIGINT", "b": ["VARCHAR"]}``)."""
    if one == other or other == "NULL":
        return one
    if one == "NULL":
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _merged(one.get(name, "NULL"), other.get(name, "NULL")) for name in {**one, **other}}
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])]
    numbers = {"UBIGINT", "BIGINT", "HUGEINT", "DOUBLE"}
    if not (isinstance(one, str) and isinstance(other, str) and {one, other} <= numbers):
        return "JSON"
    return "DOUBLE" if "DOUBLE" in (one, other) else "HUGEINT"


def _named(structure: Any) -> Any:
    """With a type also for what is always null."""
    if isinstance(structure, dict):
        return {name: _named(structure[name]) for name in sorted(structure)}
    if isinstance(structure, list):
        return [_named(inner) for inner in structure]
    return "VARCHAR" if structure == "NULL" else structure


def _batches(case: Case) -> None:
    case.sql("""CREATE VIEW judge.batches AS
        SELECT *, planned_by IS NOT NULL AND committed_by IS DISTINCT FROM planned_by AS replayed FROM history.batches""")
    case.sql("""CREATE VIEW judge.progress AS
        SELECT topic, "partition", min(done) AS end_offset
        FROM (SELECT query, topic, "partition", max(end_offset) AS done FROM history.progress GROUP BY ALL)
        GROUP BY ALL""")
    # A fault is active in the batch that it was put in, and in every batch that ran between its firing and its healing.
    case.sql("""CREATE VIEW judge.windows AS
        SELECT DISTINCT b.query, b.batch,
               f.fault || ' ' || f.target || coalesce(' in batch ' || f.batch, '') || coalesce(' at ' || f.point, '') AS fault
        FROM history.batches b JOIN history.faults f
          ON f.fired_at IS NOT NULL AND (coalesce(f.query, '') IN ('', b.query))
         AND (f.batch = b.batch OR (b.planned_at <= coalesce(f.healed_at, f.fired_at)
                                    AND coalesce(b.committed_at, f.fired_at) >= f.fired_at))""")
