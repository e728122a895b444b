"""How the records of an input topic become rows with typed columns.

For each input topic there is a view of the topic's name: one column for each field that occurs in any of the JSON object
values of its *committed* records, plus ``_topic``, ``_partition``, ``_offset``, ``_key`` (text, as
`onceproof.values.canonical.key_text` gives it), ``_timestamp_ms`` and ``_value`` (the bytes). A record whose value is null or not a JSON object has NULL in
all fields. Types follow from all values, not from a sample, and keep every digit:

- integer -> BIGINT, or HUGEINT beyond 64 bits (if all numbers of the field are written without a point and an exponent);
- any other number -> DOUBLE if a double represents every value exactly; otherwise, or if the oracle casts the column to decimals,
  DECIMAL;
- true/false -> BOOLEAN, string -> VARCHAR, object -> STRUCT, array -> LIST, only null -> VARCHAR;
- different types in different records, and numbers beyond 38 digits -> JSON.

Fields whose names differ only by case get columns of other names (`onceproof.values.documents`).

If a schema gives a field a type that JSON does not show (a decimal, a time), the column has that type.

This is so for an input with ``decode: json``, and for the records of a format and the dicts of a decoder function (`onceproof.oracle.contract.decoders`).
``string`` and ``bytes`` give one column ``value`` instead, VARCHAR (NULL for bytes that are not UTF-8) or BLOB.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq

from onceproof.formats.values import ANY
from onceproof.history.database import Connection, common_shape
from onceproof.oracle.contract import decoders
from onceproof.oracle.contract.query import as_decimals
from onceproof.scenario.model import InputSpec, OracleSpec
from onceproof.values import documents, shapes
from onceproof.values.canonical import key_text, literal, member, quote
from onceproof.values.shapes import Shape

#: SQL for the records that count for every reader of the log.
COMMITTED = "visibility = 'committed'"

# DuckDB's types of the whole numbers in JSON.
_WHOLE = ("UBIGINT", "BIGINT", "HUGEINT")
# Values that are read at a time.
_ROWS = 10_000

_META = ("_topic", "_partition", "_offset", "_key", "_timestamp_ms", "_value", "_headers")


@dataclass(frozen=True)
class Topic:
    """How the records of one topic are read."""

    name: str
    """The name of its view."""
    topic: str
    """Its name in the history."""
    source: str
    """SQL for the table that holds the records."""
    columns: tuple[str, ...]
    """SQL for the columns of the topic's view."""
    fields: str | None = None
    """SQL for the struct ``fields``; some of the columns are its members."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Field -> column, for fields whose names differ only by case."""

    def rows(self, condition: str) -> str:
        """Return a query for the records that meet a condition."""
        source = f"FROM {self.source} WHERE {condition} AND topic = {literal(self.topic)}"
        if self.fields is not None:
            source = f"FROM (SELECT *, {self.fields} AS fields {source})"
        return f"SELECT {', '.join(self.columns)} {source}"


def of_topic(records: Connection, spec: InputSpec, name: str, oracle: OracleSpec) -> Topic:
    """Derive the columns from all committed values. Raises `NotEvaluated` if a function should have decoded them and did not."""
    source, text = "observed.input", """TRY(decode("value"))"""
    meta = f"""topic AS _topic, "partition" AS _partition, "offset" AS _offset,
               {key_text('"key"')} AS _key, timestamp_ms AS _timestamp_ms, "value" AS _value"""
    code = decoders.decoded_input(records, spec) if decoders.needs_code(spec.decode) else None
    meta += ", headers AS _headers" if code is None or "headers" in pq.read_schema(code).names else ""
    if spec.decode in ("string", "bytes"):
        value = '"value"' if spec.decode == "bytes" else text
        return Topic(name, spec.topic, source, (meta, f"{value} AS value"))
    if code is not None:
        source, text = f"read_parquet({literal(str(code))})", "document"
    committed = f"FROM {source} WHERE {COMMITTED} AND topic = {literal(spec.topic)}"
    shape = common_shape(records, text, committed)
    if code is None and shape is None and records.number(f"SELECT count(*) {committed} AND {documents.loose(text)}"):
        text = f"(CASE WHEN {documents.loose(text)} THEN NULL ELSE {text} END)"  # no JSON for the job either
    read = _columns(
        records, text, committed, shape, _Asked(_decimals(oracle), decoders.types_of(records.run.decoded, spec))
    )
    fields = read.expression(text) if read.columns else None
    return Topic(name, spec.topic, source, (meta, *read.columns), fields, read.renamed)


@dataclass(frozen=True)
class _Asked:
    """The types that fields must have, whatever their values."""

    decimals: Collection[str]
    """Columns, in lower case, that the oracle casts to decimals."""
    types: Mapping[documents.Path, str]
    """Types that a schema gives. ``*`` in a path stands for any key of a map."""

    def type_at(self, path: documents.Path) -> str | None:
        exact = self.types.get(path)
        if exact is not None or not self.types:
            return exact or None
        for pattern, kind in self.types.items():
            if len(pattern) == len(path) and all(one in (other, ANY) for one, other in zip(pattern, path, strict=True)):
                return kind or None
        return None


@dataclass(frozen=True)
class _Read:
    """How the fields of a topic's values are read."""

    columns: list[str]
    structure: dict[str, Any]
    exact: dict[str, tuple[str, str]] | None
    """The argument of `documents.FUNCTION`; None: DuckDB reads the values as they are."""
    renamed: dict[str, str]

    def expression(self, text: str) -> str:
        if self.exact is not None:
            text = f"{documents.FUNCTION}({text}, {literal(documents.fields_of(self.exact))})"
        return f"TRY(json_transform({text}, {literal(json.dumps(self.structure))}))"


def _columns(records: Connection, text: str, source: str, shape: Shape | None, asked: _Asked) -> _Read:
    found, repeated = _fields(records, text, source) if shape is None else (_types_of(shape), False)
    found = {name: kind for name, kind in found.items() if name.lower() not in _META}
    numbers = _numbers(records, text, source, found, asked, short=shape is not None)
    named = documents.columns(found)
    types = {name: _structure_of(kind, (name,), numbers, asked) for name, kind in found.items()}
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


def _types_of(shape: Shape) -> dict[str, Any]:
    """Field -> DuckDB's type, as `_fields` gives it."""
    types = {shapes.STRING: "VARCHAR", shapes.WHOLE: "BIGINT", shapes.FRACTION: "DOUBLE", shapes.BOOLEAN: "BOOLEAN"}
    return {name: types[kind] for name, kind in shape.kinds.items()}


def _structure_of(kind: Any, path: documents.Path, numbers: documents.NumbersByPath | None, asked: _Asked) -> Any:
    """Return the structure with which DuckDB reads a value; None if no structure keeps everything, so that the value stays JSON."""
    if isinstance(kind, dict):
        inner = {name: _structure_of(kind[name], (*path, name), numbers, asked) for name in sorted(kind)}
        return None if None in inner.values() or documents.renamed(kind) else inner
    if isinstance(kind, list):
        element = _structure_of(kind[0], (*path, None), numbers, asked)
        return None if element is None else [element]
    if isinstance(kind, str) and (known := asked.type_at(path)) is not None:
        return known
    if kind == "JSON":
        return kind if numbers is None or all(digits.exact_as_double for digits in numbers.below(path)) else None
    if kind not in (*_WHOLE, "DOUBLE"):
        return "VARCHAR" if kind == "NULL" else kind
    digits = numbers.at.get(path) if numbers is not None else None
    # DuckDB takes whole numbers beyond 64 bits for doubles, which would equal other whole numbers.
    whole = kind in _WHOLE or (digits is not None and digits.whole_numbers)
    if not whole and (digits is None or (digits.exact_as_double and str(path[0]).lower() not in asked.decimals)):
        return kind
    found = "BIGINT" if digits is None else digits.type(whole_numbers=whole)
    return None if found == "JSON" else found


def _numbers(
    records: Connection, text: str, source: str, fields: dict[str, Any], asked: _Asked, *, short: bool
) -> documents.NumbersByPath | None:
    """Return the digits of all numbers in the values; None if all numbers fit the types that DuckDB found.

    ``short``: no number has more digits than its type holds.
    """
    kinds = set(_leaves(fields))
    # Read all documents with objects in them: it is the only way to see whether a nested name occurs twice.
    if _has_objects(fields) or any(
        kind == "DOUBLE" and name.lower() in asked.decimals for name, kind in fields.items()
    ):
        return _read_numbers(records, f"SELECT {text} {source}")
    if short or not kinds & {*_WHOLE, "DOUBLE", "JSON"}:
        return None
    pattern = documents.LONG_NUMBER if kinds & {"DOUBLE", "JSON"} else "[0-9]{19}"
    some = _read_numbers(records, f"SELECT {text} {source} AND regexp_matches({text}, {literal(pattern)})")
    if all(_fits(digits, _leaf_at(fields, path)) for path, digits in some.at.items()):
        return None
    return _read_numbers(records, f"SELECT {text} {source}")


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
    """Return the type at a path; JSON also below a value of several types."""
    for step in path:
        structure = structure[0] if step is None and isinstance(structure, list) else structure
        structure = structure.get(step, "JSON") if isinstance(structure, dict) else structure
    return structure if isinstance(structure, str) else "JSON"


def _fits(digits: documents.Digits, kind: str) -> bool:
    short = digits.type(whole_numbers=True) == "BIGINT"
    if kind in _WHOLE:
        return short
    # Whole numbers beyond 64 bits: DuckDB takes them for doubles, and only all numbers together show whether they are.
    return digits.exact_as_double and (short or kind != "DOUBLE" or not digits.whole_numbers)


def _read_numbers(records: Connection, query: str) -> documents.NumbersByPath:
    numbers = documents.NumbersByPath()
    rows = records.sql(query)
    while some := rows.fetchmany(_ROWS):
        for (document,) in some:
            if document is not None:
                numbers.read(document)
    return numbers


def _decimals(oracle: OracleSpec) -> set[str]:
    """Return the columns that the oracle casts to decimals: a double would have other digits than the written value."""
    return {name for text in _texts(oracle.model_dump()) for name in as_decimals(text)}


def _texts(settings: Any) -> Iterator[str]:
    if isinstance(settings, str):
        yield settings
    for inner in settings.values() if isinstance(settings, dict) else settings if isinstance(settings, list) else ():
        yield from _texts(inner)


def _fields(records: Connection, text: str, source: str) -> tuple[dict[str, Any], bool]:
    """Return field -> structure for all JSON objects, and whether some object has a name twice.

    Names and the types of plain fields are read first: they cost a fifth of whole structures.
    """
    names: dict[str, None] = {}
    plain, repeated = True, False
    for (keys,) in _each(records, f"SELECT DISTINCT TRY(json_keys({text})) {source}"):
        names.update(dict.fromkeys(keys or ()))
        repeated = repeated or len(set(keys or ())) < len(keys or ())
        plain = plain and not any(map(str.isdigit, keys or ()))
    if not names:
        return {}, False
    pointers = ", ".join(member(name) for name in names)
    fields: dict[str, Any] = dict.fromkeys(names, "NULL")
    plain = plain and not repeated
    if plain:
        for (kinds,) in _each(records, f"SELECT DISTINCT TRY(json_type({text}, [{pointers}])) {source}"):
            found = {name: kind for name, kind in zip(names, kinds or (), strict=False) if kind is not None}
            fields = _merged(fields, found)
        plain = not {"ARRAY", "OBJECT", "JSON"} & set(fields.values())
    if not plain:
        fields = {}
        # Merge distinct structures here: DuckDB's own aggregate keeps every value in memory until it is done.
        for (structure,) in _each(records, f"SELECT DISTINCT TRY(json_structure({text})) {source}"):
            found = json.loads(structure or "null")
            fields = _merged(fields, found) if isinstance(found, dict) else fields
    return fields, repeated


def _each(records: Connection, query: str) -> Iterator[tuple[Any, ...]]:
    rows = records.sql(query)
    while row := rows.fetchone():
        yield row


def _merged(one: Any, other: Any) -> Any:
    """Return the structure that fits both (in DuckDB's names: ``{"a": "UBIGINT", "b": ["VARCHAR"]}``)."""
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
