"""Views over a stored history: the observed tables, and the input as the scenario's SQL sees it.

**Decoded views.** For each input topic a view of the topic's name over its *committed* records: one column for each
field that occurs in any of its JSON object values, plus ``_topic``, ``_partition``, ``_offset``, ``_key`` (text; bytes
that are not UTF-8 are escaped as ``\\xNN``), ``_timestamp_ms`` and ``_value`` (the bytes). Types come from all values,
not from a sample: integer -> BIGINT (one beyond 64 bits makes the oracle fail), any other number -> DOUBLE, true/false -> BOOLEAN,
string -> VARCHAR, object -> STRUCT, array -> LIST, different things in different records -> JSON, nothing but null ->
VARCHAR. A record whose value is null or no JSON object has NULL in all of them. A view takes precedence over
``input`` where a topic has that name; the bytes are then found in ``history.input``.

So it is with an input's ``decode: json``, and with a function's dicts (`onceproof.judge.decoders`); ``string`` and ``bytes`` give
one column ``value`` instead, VARCHAR (NULL for bytes that are not UTF-8) or BLOB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.parquet as pq

from onceproof.history.schema import LATER, TABLES
from onceproof.judge import decoders
from onceproof.judge.canonical import literal, member, quote
from onceproof.judge.checker import NotEvaluated

if TYPE_CHECKING:
    from onceproof.judge.case import Case
    from onceproof.scenario.model import InputSpec

# Evaluated anew by each query over the views: with the variable set they show the uncommitted input too.
_COUNTS = "(visibility = 'committed' OR coalesce(getvariable('uncommitted_input'), false))"

_META = ("_topic", "_partition", "_offset", "_key", "_timestamp_ms", "_value", "_headers")


def observed(case: Case) -> None:
    """The tables of the history as they are, and what follows from them alone."""
    case.sql("CREATE SCHEMA history")
    case.sql("CREATE SCHEMA judge")
    kind = "TABLE" if case.small else "VIEW"
    for name, path in case.history.tables.items():
        has = pq.read_schema(path).names
        later = "".join(
            f", NULL::VARCHAR AS {column}" for column in LATER if column in TABLES[name].names and column not in has
        )
        case.sql(f"CREATE {kind} history.{quote(name)} AS SELECT *{later} FROM read_parquet({literal(str(path))})")  # noqa: S608
    case.sql(f"""CREATE VIEW input AS SELECT topic, "partition", "offset", "key", "value", timestamp_ms
        FROM history.input WHERE {_COUNTS}""")  # noqa: S608
    _batches(case)


def decoded(case: Case) -> None:
    """What the oracle reads. Raises `NotEvaluated` for values that cannot be made columns."""
    for name, path in case.history.static.items():
        case.sql(f"CREATE VIEW {quote(name)} AS SELECT * FROM read_parquet({literal(str(path))})")  # noqa: S608
    for spec in case.scenario.input:
        _decoded(case, spec)


def with_uncommitted(case: Case) -> bool:
    """Make ``judge.uncommitted`` (see `onceproof.judge.case.Case.uncommitted`)."""
    some = case.number("SELECT count(*) FROM history.input WHERE visibility <> 'committed'")
    known = True
    if some:
        case.sql("SET VARIABLE uncommitted_input = true")
        try:
            case.expect_into("judge.expected_of_all")
        except NotEvaluated:
            known = False
        finally:
            case.sql("RESET VARIABLE uncommitted_input")
    source = "judge.expected_of_all" if some and known else "judge.expected WHERE false"
    case.sql(f"""CREATE TABLE judge.uncommitted AS SELECT a.* FROM (FROM {source}) a
        WHERE NOT EXISTS (FROM judge.expected e WHERE e.output = a.output AND e.id = a.id AND e.content = a.content)""")  # noqa: S608
    return known


def _decoded(case: Case, spec: InputSpec) -> None:
    topic, table, text = spec.topic, "history.input", """TRY(decode("value"))"""
    meta = """topic AS _topic, "partition" AS _partition, "offset" AS _offset,
               coalesce(TRY(decode("key")), "key"::VARCHAR) AS _key, timestamp_ms AS _timestamp_ms, "value" AS _value"""
    code = decoders.decoded_input(case, spec) if decoders.needs_code(spec.decode) else None
    meta += ", headers AS _headers" if code is None or "headers" in pq.read_schema(code).names else ""
    if spec.decode in ("string", "bytes"):
        value = '"value"' if spec.decode == "bytes" else text
        where = f"{_COUNTS} AND topic = {literal(topic)}"
        case.sql(f"CREATE OR REPLACE VIEW {quote(topic)} AS SELECT {meta}, {value} AS value FROM {table} WHERE {where}")  # noqa: S608
        return
    if code is not None:
        table, text = f"read_parquet({literal(str(code))})", "document"
    source = f"FROM {table} WHERE {_COUNTS} AND topic = {literal(topic)}"
    fields = _named(_fields(case, text, source))
    fields = {name: kind for name, kind in fields.items() if name.lower() not in _META}
    columns = [meta]
    if fields:
        source = f"FROM (SELECT *, TRY(json_transform({text}, {literal(json.dumps(fields))})) AS fields {source})"
        columns += [_column(name, kind) for name, kind in fields.items()]
    try:
        case.sql(f"CREATE OR REPLACE VIEW {quote(topic)} AS SELECT {', '.join(columns)} {source}")
    except duckdb.Error as error:
        raise NotEvaluated(f"the values of topic {topic!r} cannot be made columns: {error}") from error


def _fields(case: Case, text: str, source: str) -> dict[str, Any]:
    """Field -> structure, of all JSON objects. Their names and the types of plain fields cost a fifth of whole structures."""
    names: dict[str, None] = {}
    plain = True
    for (keys,) in _each(case, f"SELECT DISTINCT TRY(json_keys({text})) {source}"):
        names.update(dict.fromkeys(keys or ()))
        plain = plain and len(set(keys or ())) == len(keys or ()) and not any(map(str.isdigit, keys or ()))
    if not names:
        return {}
    pointers = ", ".join(member(name) for name in names)
    fields: dict[str, Any] = dict.fromkeys(names, "NULL")
    if plain:
        for (kinds,) in _each(case, f"SELECT DISTINCT TRY(json_type({text}, [{pointers}])) {source}"):
            found = {name: kind for name, kind in zip(names, kinds or (), strict=False) if kind is not None}
            fields = _merged(fields, found)
        plain = not {"ARRAY", "OBJECT", "JSON"} & set(fields.values())
    if not plain:
        fields = {}
        # Distinct ones, merged here: DuckDB's own aggregate keeps every value in memory until it is done.
        for (structure,) in _each(case, f"SELECT DISTINCT TRY(json_structure({text})) {source}"):
            found = json.loads(structure or "null")
            fields = _merged(fields, found) if isinstance(found, dict) else fields
    return fields


def _each(case: Case, query: str) -> Iterator[tuple[Any, ...]]:
    rows = case.sql(query)
    while row := rows.fetchone():
        yield row


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
    began = case.run.get("wall_start")
    case.sql(f"""CREATE VIEW judge.batches AS
        SELECT * EXCLUDE (began), planned_by IS NOT NULL AND committed_by IS DISTINCT FROM planned_by AS replayed,
               (1000 * (began + planned_at))::BIGINT AS planned_ms, (1000 * (began + committed_at))::BIGINT AS committed_ms
        FROM (SELECT *, {"NULL" if began is None else float(began)}::DOUBLE AS began FROM history.batches)""")  # noqa: S608
    # A fault is active in the batch that it was put in, and in every batch that ran between its firing and its healing.
    case.sql("""CREATE VIEW judge.windows AS
        SELECT DISTINCT b.query, b.batch,
               f.fault || ' ' || f.target || coalesce(' in batch ' || f.batch, '') || coalesce(' at ' || f.point, '') AS fault
        FROM history.batches b JOIN history.faults f
          ON f.fired_at IS NOT NULL AND (coalesce(f.query, '') IN ('', b.query))
         AND (f.batch = b.batch OR (b.planned_at <= coalesce(f.healed_at, f.fired_at)
                                    AND coalesce(b.committed_at, f.fired_at) >= f.fired_at))""")
    # Consumers have no batches: their faults strike at a message, which the ledger has by its number. What a fault does to one
    # group's copy of it is no excuse for another's.
    outputs = ", ".join(
        f"({literal(name)}, {'NULL' if spec.query is None else literal(spec.query)}::VARCHAR)"
        for name, spec in case.scenario.outputs.items()
    )
    case.sql(f"""CREATE VIEW judge.struck AS
        SELECT DISTINCT o.output, s.topic, s."partition", s."offset", f.fault || ' ' || f.target || ' at ' || f.point AS fault
        FROM history.faults f JOIN history.sent s
          ON s.seq + 1 = TRY_CAST(regexp_extract(f.point, '^message ([0-9]+) after ', 1) AS BIGINT)
        JOIN (VALUES {outputs}) o(output, query) ON coalesce(f.query, '') IN ('', o.query)
        WHERE f.fired_at IS NOT NULL AND s."offset" IS NOT NULL""")  # noqa: S608
