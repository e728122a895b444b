"""Views over a stored history: the observed tables, and the input as the scenario's SQL sees it.

**Decoded views.** For each input topic a view of the topic's name over its *committed* records: one column for each
field that occurs in any of its JSON object values, plus ``_topic``, ``_partition``, ``_offset``, ``_key`` (text; bytes
that are not UTF-8 are escaped as ``\\xNN``), ``_timestamp_ms`` and ``_value`` (the bytes). Types come from all values,
not from a sample, and hold every digit: integer -> BIGINT, or HUGEINT beyond 64 bits; any other number -> DOUBLE where a
double says the same, else (or if the oracle casts the column to decimals) DECIMAL; true/false -> BOOLEAN, string ->
VARCHAR, object -> STRUCT, array -> LIST, different things in different records, and numbers beyond 38 digits, -> JSON;
nothing but null -> VARCHAR. Fields whose names differ only by case get columns of other names
(`onceproof.values.documents`). A record whose value is null or no JSON object has NULL in all of them. A view takes precedence over ``input`` where a topic has that name; the bytes are then found in ``history.input``.

So it is with an input's ``decode: json``, and with a function's dicts (`onceproof.judge.case.decoders`); ``string`` and ``bytes`` give
one column ``value`` instead, VARCHAR (NULL for bytes that are not UTF-8) or BLOB.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.parquet as pq

from onceproof.base.errors import NotEvaluated
from onceproof.judge.case import decoders
from onceproof.judge.case.database import observed_rows
from onceproof.judge.case.query import as_decimals
from onceproof.values import documents
from onceproof.values.canonical import literal, member, quote

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case
    from onceproof.judge.case.inputs import Inputs
    from onceproof.scenario.model import InputSpec

# Evaluated anew by each query over the views: with the variable set they show the uncommitted input too.
# With ranges of offsets in ``chosen_input`` they show what lies in these, or with ``leave_out`` all but that.
_COUNTS = """((visibility = 'committed' OR coalesce(getvariable('uncommitted_input'), false))
    AND (len(getvariable('chosen_input')) = 0 OR getvariable('leave_out') <> (len(list_filter(getvariable('chosen_input'),
         lambda r: r.topic = topic AND r."partition" = "partition" AND "offset" >= r.start_offset AND "offset" < r.end_offset)) > 0)))"""
_ALL_INPUT = """SET VARIABLE chosen_input = []::STRUCT(topic VARCHAR, "partition" INTEGER, start_offset BIGINT, end_offset BIGINT)[]"""

# DuckDB's types of the whole numbers in JSON.
_WHOLE = ("UBIGINT", "BIGINT", "HUGEINT")
# As many values are looked at in one go.
_ROWS = 10_000

_META = ("_topic", "_partition", "_offset", "_key", "_timestamp_ms", "_value", "_headers")


def observed(case: Case) -> None:
    """The tables of the history as they are, and what follows from them alone."""
    case.sql("CREATE SCHEMA history")
    case.sql("CREATE SCHEMA judge")
    kind = "TABLE" if case.small else "VIEW"
    for name, path in case.history.tables.items():
        case.sql(f"CREATE {kind} history.{quote(name)} AS {observed_rows(name, path)}")
    _batches(case)


def decoded(case: Inputs) -> None:
    """What the oracle reads. Raises `NotEvaluated` for values that cannot be made columns."""
    show_all_input(case)
    case.sql(f"""CREATE VIEW input AS SELECT topic, "partition", "offset", "key", "value", timestamp_ms
        FROM history.input WHERE {_COUNTS}""")  # noqa: S608
    for name, path in case.history.static.items():
        case.sql(f"CREATE VIEW {quote(name)} AS SELECT * FROM read_parquet({literal(str(path))})")  # noqa: S608
    for spec in case.scenario.input:
        _decoded(case, spec)


def with_uncommitted(case: Case) -> bool:
    """Make ``judge.uncommitted`` (see `onceproof.judge.case.case.Case.uncommitted`)."""
    some = case.number("SELECT count(*) FROM history.input WHERE visibility <> 'committed'")
    known = True
    if some:
        case.inputs.sql("SET VARIABLE uncommitted_input = true")
        try:
            case.expect_into("judge.expected_of_all")
        except NotEvaluated:
            known = False
        finally:
            case.inputs.sql("RESET VARIABLE uncommitted_input")
    source = "judge.expected_of_all" if some and known else "judge.expected WHERE false"
    case.sql(f"""CREATE TABLE judge.uncommitted AS SELECT a.* FROM (FROM {source}) a
        WHERE NOT EXISTS (FROM judge.expected e WHERE e.output = a.output AND e.id = a.id AND e.content = a.content)""")  # noqa: S608
    return known


def show_all_input(inputs: Inputs) -> None:
    """Let the views over the input show all of it (see ``_COUNTS``)."""
    inputs.sql(_ALL_INPUT)
    inputs.sql("SET VARIABLE leave_out = false")


def of_batches(case: Case, table: str, query: str, batches: Collection[int], *, leave_out: bool = False) -> None:
    """Make ``table`` of what the oracle expects of the input of these batches alone, or of all other input. Raises `NotEvaluated`."""
    ranges = case.rows(
        """SELECT topic, "partition", start_offset, end_offset FROM history.batches
           WHERE query = $query AND list_contains($batches, batch) AND end_offset > start_offset""",
        {"query": query, "batches": list(batches)},
    )
    chosen = ", ".join(
        f"""{{topic: {literal(r["topic"])}, "partition": {r["partition"]}, start_offset: {r["start_offset"]}, end_offset: {r["end_offset"]}}}"""
        for r in ranges or [{"topic": "", "partition": -1, "start_offset": 0, "end_offset": 0}]
    )
    case.inputs.sql(f"SET VARIABLE chosen_input = [{chosen}]")
    case.inputs.sql(f"SET VARIABLE leave_out = {str(leave_out).lower()}")
    try:
        case.expect_into(table)
    finally:
        show_all_input(case.inputs)


def _decoded(case: Inputs, spec: InputSpec) -> None:
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
    read = _columns(case, text, source)
    columns = [meta, *read.columns]
    if read.columns:
        source = f"FROM (SELECT *, {read.expression(text)} AS fields {source})"
    if read.renamed:
        case.renamed[topic] = read.renamed
    try:
        case.sql(f"CREATE OR REPLACE VIEW {quote(topic)} AS SELECT {', '.join(columns)} {source}")
    except duckdb.Error as error:
        raise NotEvaluated(f"the values of topic {topic!r} cannot be made columns: {error}") from error


@dataclass(frozen=True)
class _Read:
    """How the fields of a topic's values are read."""

    columns: list[str]
    structure: dict[str, Any]
    exact: dict[str, tuple[str, str]] | None
    """What `documents.FUNCTION` is asked for; None: DuckDB reads the values as they are."""
    renamed: dict[str, str]

    def expression(self, text: str) -> str:
        if self.exact is not None:
            text = f"{documents.FUNCTION}({text}, {literal(documents.fields_of(self.exact))})"
        return f"TRY(json_transform({text}, {literal(json.dumps(self.structure))}))"


def _columns(case: Inputs, text: str, source: str) -> _Read:
    found, repeated = _fields(case, text, source)
    found = {name: kind for name, kind in found.items() if name.lower() not in _META}
    numbers = _numbers(case, text, source, found)
    named = documents.columns(found)
    asked = _decimals(case)
    types = {name: _typed(kind, (name,), numbers, asked) for name, kind in found.items()}
    as_json = {name for name, kind in types.items() if kind is None}
    odd = numbers is not None and (
        numbers.repeated or any(d.with_exponent and not d.exact_as_double for d in numbers.at.values())
    )
    odd = odd or repeated or any(name != column for name, column in named.items())
    if as_json or odd:
        as_json |= {name for name, kind in types.items() if kind == "JSON"}
        exact = {named[n]: (n, documents.JSON if n in as_json else documents.VALUE) for n in types}
    else:
        exact = None
    return _Read(
        [f"fields.{quote(named[n])}{'::JSON' if exact and n in as_json else ''} AS {quote(named[n])}" for n in types],
        {named[n]: "VARCHAR" if exact and n in as_json else kind for n, kind in types.items()},
        exact,
        documents.renamed(found),
    )


def _typed(kind: Any, path: documents.Path, numbers: documents.Numbers | None, asked: set[str]) -> Any:
    """The structure in which DuckDB is to read a value; None: it has none that keeps all, and the value stays JSON."""
    if isinstance(kind, dict):
        inner = {name: _typed(kind[name], (*path, name), numbers, asked) for name in sorted(kind)}
        return None if None in inner.values() or documents.renamed(kind) else inner
    if isinstance(kind, list):
        element = _typed(kind[0], (*path, None), numbers, asked)
        return None if element is None else [element]
    if kind == "JSON":
        return kind if numbers is None or all(digits.exact_as_double for digits in numbers.below(path)) else None
    if kind not in (*_WHOLE, "DOUBLE"):
        return "VARCHAR" if kind == "NULL" else kind
    digits = numbers.at.get(path) if numbers is not None else None
    if kind == "DOUBLE" and (digits is None or (digits.exact_as_double and str(path[0]).lower() not in asked)):
        return kind
    found = "BIGINT" if digits is None else digits.type(whole_numbers=kind in _WHOLE)
    return None if found == "JSON" else found


def _numbers(case: Inputs, text: str, source: str, fields: dict[str, Any]) -> documents.Numbers | None:
    """Every number of the values; None if all of them fit the types that DuckDB found."""
    kinds = set(_leaves(fields))
    asked = _decimals(case)
    # Of names within names nobody sees otherwise whether one of them occurs twice.
    if _has_objects(fields) or any(kind == "DOUBLE" and name.lower() in asked for name, kind in fields.items()):
        return _look(case, f"SELECT {text} {source}")
    if not kinds & {*_WHOLE, "DOUBLE", "JSON"}:
        return None
    pattern = documents.LONG_NUMBER if kinds & {"DOUBLE", "JSON"} else "[0-9]{19}"
    some = _look(case, f"SELECT {text} {source} AND regexp_matches({text}, {literal(pattern)})")
    if all(_fits(digits, _leaf_at(fields, path)) for path, digits in some.at.items()):
        return None
    return _look(case, f"SELECT {text} {source}")


def _leaves(structure: Any) -> Iterator[str]:
    if isinstance(structure, str):
        yield structure
    for inner in (
        structure.values() if isinstance(structure, dict) else structure if isinstance(structure, list) else ()
    ):
        yield from _leaves(inner)


def _has_objects(fields: dict[str, Any]) -> bool:
    def nested(kind: Any) -> bool:
        return isinstance(kind, dict) or kind == "JSON" or (isinstance(kind, list) and nested(kind[0]))

    return any(map(nested, fields.values()))


def _leaf_at(structure: Any, path: documents.Path) -> str:
    """The type at a place; JSON also for what is below a value of several types."""
    for step in path:
        structure = structure[0] if step is None and isinstance(structure, list) else structure
        structure = structure.get(step, "JSON") if isinstance(structure, dict) else structure
    return structure if isinstance(structure, str) else "JSON"


def _fits(digits: documents.Digits, kind: str) -> bool:
    return digits.type(whole_numbers=True) == "BIGINT" if kind in _WHOLE else digits.exact_as_double


def _look(case: Inputs, query: str) -> documents.Numbers:
    numbers = documents.Numbers()
    rows = case.sql(query)
    while some := rows.fetchmany(_ROWS):
        for (document,) in some:
            if document is not None:
                numbers.read(document)
    return numbers


def _decimals(case: Inputs) -> set[str]:
    """Columns that the oracle casts to decimals: a double would give other digits than the value was written with."""
    return {name for text in _texts(case.oracle.model_dump()) for name in as_decimals(text)}


def _texts(settings: Any) -> Iterator[str]:
    if isinstance(settings, str):
        yield settings
    for inner in settings.values() if isinstance(settings, dict) else settings if isinstance(settings, list) else ():
        yield from _texts(inner)


def _fields(case: Inputs, text: str, source: str) -> tuple[dict[str, Any], bool]:
    """Field -> structure, of all JSON objects, and whether some object has a name twice. Their names and the types of plain fields cost a fifth of whole structures."""
    names: dict[str, None] = {}
    plain, repeated = True, False
    for (keys,) in _each(case, f"SELECT DISTINCT TRY(json_keys({text})) {source}"):
        names.update(dict.fromkeys(keys or ()))
        repeated = repeated or len(set(keys or ())) < len(keys or ())
        plain = plain and not any(map(str.isdigit, keys or ()))
    if not names:
        return {}, False
    pointers = ", ".join(member(name) for name in names)
    fields: dict[str, Any] = dict.fromkeys(names, "NULL")
    plain = plain and not repeated
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
    return fields, repeated


def _each(case: Inputs, query: str) -> Iterator[tuple[Any, ...]]:
    rows = case.sql(query)
    while row := rows.fetchone():
        yield row


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
    if not (isinstance(one, str) and isinstance(other, str) and {one, other} <= {*_WHOLE, "DOUBLE"}):
        return "JSON"
    return "DOUBLE" if "DOUBLE" in (one, other) else "HUGEINT"


def _batches(case: Case) -> None:
    began = case.run.wall_start
    case.sql(f"""CREATE VIEW judge.batches AS
        SELECT * EXCLUDE (began), planned_by IS NOT NULL AND committed_by IS DISTINCT FROM planned_by AS replayed,
               (1000 * (began + planned_at))::BIGINT AS planned_ms, (1000 * (began + committed_at))::BIGINT AS committed_ms
        FROM (SELECT *, {"NULL" if began is None else began}::DOUBLE AS began FROM history.batches)""")  # noqa: S608
    # A fault strikes the batch that it was put in. In other batches that ran between its firing and its healing it was active.
    case.sql("""CREATE VIEW judge.windows AS
        WITH pairs AS (
            SELECT b.query, b.batch,
                   f.fault || ' ' || f.target || coalesce(' in batch ' || f.batch, '') || coalesce(' at ' || f.point, '') AS fault,
                   f.batch = b.batch AS same_batch, f.query = b.query AS same_query,
                   coalesce(b.planned_at <= coalesce(f.healed_at, f.fired_at)
                            AND coalesce(b.committed_at, f.fired_at) >= f.fired_at, false) AS same_time,
                   b.planned_at IS NULL AS timeless
            FROM history.batches b JOIN history.faults f
              ON f.fired_at IS NOT NULL AND (coalesce(f.query, '') IN ('', b.query)))
        SELECT query, batch, fault, bool_or(coalesce(same_batch AND (same_query OR same_time OR timeless OR one_query), false)) AS struck
        FROM (SELECT *, (SELECT count(DISTINCT query) FROM history.batches) = 1 AS one_query FROM pairs)
        WHERE coalesce(same_batch, false) OR same_time GROUP BY ALL""")
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
