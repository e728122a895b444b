"""Avro: binary values, by the schema with which they were written, resolved to the schema by which they are read."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple
from uuid import UUID

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from onceproof.base.errors import UsageError
from onceproof.formats import values
from onceproof.formats.avro_reading import disagreement, without_lost_types
from onceproof.formats.avro_reading import kind_of as _kind
from onceproof.formats.avro_reading import logical_of as _logical
from onceproof.formats.avro_unions import IN_JSON, branch_name, dates_first, in_its_branch, members, unions
from onceproof.formats.registry import Schema
from onceproof.formats.values import (
    ANY,
    DATE,
    DOUBLE,
    INSTANT,
    LOCAL,
    SHOWN,
    SINGLE,
    TIME,
    UUID_TYPE,
    WHOLE,
    Path,
    after_epoch,
    day_after_epoch,
    unscaled_decimal,
)

#: The end of a mismatch that fastavro would not report.
UNCLEAR = ": implementations of Avro do not agree what such a value means"
_RANGE = {"int": 2**31, "long": 2**63}


class Avro:
    """One schema, with everything that it uses."""

    def __init__(self, schema: Schema) -> None:
        """Raises `UsageError` if the text is not an Avro schema."""
        self._named: dict[str, Any] = {}
        self._read_by: tuple[Avro, Any] | None = None
        """The last reader, and this schema as it reads values."""
        place = schema.file or "from the registry"
        try:
            for _, text in schema.references:
                fastavro.parse_schema(json.loads(text), named_schemas=self._named)
            self.parsed: Any = fastavro.parse_schema(json.loads(schema.text), named_schemas=self._named)
            self._settle_unions()
        except (ValueError, SchemaParseException, UnknownType, TypeError, KeyError, AttributeError) as error:
            message = f"schema {place!r} is not an Avro schema: {type(error).__name__}: {error}"
            raise UsageError(message, hint="correct the schema") from None
        self._has_single = _mentions(self.parsed, "float") or any(_mentions(s, "float") for s in self._named.values())

    def _settle_unions(self) -> None:
        """Let each default of a union be a value of its type: fastavro gives it as the schema writes it, and only there the type is known.

        Raises `SchemaParseException` for a union that has a type twice, which Avro forbids and fastavro accepts.
        """
        for schema in [self.parsed, *self._named.values()]:
            for union in unions(schema):
                names = [branch_name(branch) for branch in union]
                if twice := next((name for name in names if names.count(name) > 1), None):
                    raise SchemaParseException(f"a union has the type {twice} twice")
            for member in members(schema):
                default = member.get("default")
                if isinstance(member["type"], list) and default is not None:
                    branches = map(self._definition, member["type"])
                    branch = next((one for one in branches if isinstance(default, IN_JSON.get(_kind(one), ()))), None)
                    member["default"] = default if branch is None else self._finished(branch, default, singles=False)

    def decode(self, body: bytes, reader: Avro | None = None) -> Any:
        """The value. Raises any `Exception` for bytes that do not fit the schema, or that ``reader`` cannot resolve."""
        stream = io.BytesIO(body)
        written = self.parsed if reader is None else self._as_read_by(reader)
        value = fastavro.schemaless_reader(
            stream, written, None if reader is None else reader.parsed, return_named_type=False
        )
        left = len(body) - stream.tell()
        if left:
            raise ValueError(f"{left} bytes are left after the value: it was written with another schema")
        shown = reader or self
        if reader is None and not self._has_single:
            return value
        return shown._finished(shown.parsed, value, singles=True)

    def _as_read_by(self, reader: Avro) -> Any:
        """The schema without logical types that the reader's lacks. Raises `ValueError` if a value's meaning is unclear."""
        if self._read_by is None or self._read_by[0] is not reader:
            unclear = self._mismatch(self.parsed, reader.parsed, reader, "the record", frozenset())
            if unclear is not None and unclear.endswith(UNCLEAR):
                raise ValueError(unclear)
            plain = without_lost_types(self.parsed, reader.parsed, self._named, reader._named)
            self._read_by = reader, fastavro.parse_schema(plain)
        return self._read_by[1]

    def encode(self, value: Any) -> bytes:
        """A value of JSON, its fractions as `Decimal`, as Avro. Raises `ValueError` if it does not fit."""
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self.parsed, self._fit(self.parsed, value, ""))
        return out.getvalue()

    def types(self) -> dict[Path, str]:
        """The type of each field: DuckDB's, or `SHOWN` or `WHOLE` if JSON shows it."""
        return {path: kind for path, kind in self._types(self.parsed, (), frozenset()) if path}

    def resolve_problem(self, reader: Avro) -> str | None:
        """Why values written by this schema cannot be read by ``reader``, as far as the schemas alone show it."""
        return self._mismatch(self.parsed, reader.parsed, reader, "the record", frozenset())

    def _definition(self, schema: Any) -> Any:
        """The schema, or the one that its name refers to."""
        return self._named.get(schema, schema) if isinstance(schema, str) else schema

    def _types(self, schema: Any, path: Path, within: frozenset[str]) -> Iterator[tuple[Path, str]]:
        schema = self._definition(schema)
        if isinstance(schema, list):
            some = [branch for branch in schema if branch != "null"]
            if len(some) == 1:
                yield from self._types(some[0], path, within)
            elif some:
                yield path, SHOWN
            return
        kind, logical = _kind(schema), _logical(schema)
        if logical == "decimal":
            yield path, values.decimal_type(schema["precision"], schema.get("scale", 0)) or SHOWN
        elif logical in _LOGICAL:
            yield path, _LOGICAL[logical].type
        elif kind in ("float", "double"):
            yield path, SINGLE if kind == "float" else DOUBLE
        else:
            yield path, WHOLE if kind in ("int", "long") else SHOWN
        if logical in (*_LOGICAL, "decimal"):
            return
        if kind == "array":
            yield from self._types(schema["items"], (*path, None), within)
        elif kind == "map":
            yield from self._types(schema["values"], (*path, ANY), within)
        elif kind in ("record", "error") and schema["name"] not in within:
            for member in schema["fields"]:
                yield from self._types(member["type"], (*path, member["name"]), within | {schema["name"]})

    def _finished(self, schema: Any, value: Any, *, singles: bool) -> Any:
        """The value with defaults as values of their types, which fastavro leaves as the schema writes them.

        With ``singles``, 32-bit numbers are in the form in which they are compared.
        """
        schema = self._definition(schema)
        kind, logical = _kind(schema), _logical(schema)
        if isinstance(schema, list):
            branch = self._branch(schema, value)
            return value if branch is None else self._finished(branch, value, singles=singles)
        if kind == "array":
            return [self._finished(schema["items"], inner, singles=singles) for inner in value]
        if kind == "map":
            return {name: self._finished(schema["values"], inner, singles=singles) for name, inner in value.items()}
        if kind in ("record", "error"):
            fields = {member["name"]: member for member in schema["fields"]}
            given = {name: value.get(name, member.get("default")) for name, member in fields.items()}
            return {n: self._finished(fields[n]["type"], each, singles=singles) for n, each in given.items()}
        if kind == "float" and isinstance(value, int | float):
            return values.single(value) if singles else float(value)
        if kind in ("bytes", "fixed") and isinstance(value, str | bytes):
            value = value.encode("latin-1") if isinstance(value, str) else value
            return unscaled_decimal(value, schema.get("scale", 0)) if logical == "decimal" else value
        if logical in _LOGICAL and isinstance(value, str if logical == "uuid" else int):
            return _LOGICAL[logical].of_default(value)
        return value

    def _branch(self, branches: list[Any], value: Any) -> Any:
        """The branch of the union that the value belongs to; None if it is unclear, or if the value needs no change."""
        if value is None:
            return None
        some = [self._definition(branch) for branch in branches if branch != "null"]
        if len(some) == 1:
            return some[0]
        kinds = {"record": dict, "map": dict, "array": list, "float": float}
        fits = [b for b in some if isinstance(value, kinds.get(_kind(b), ())) and _has_fields(b, value)]
        unclear = isinstance(value, float) and "double" in map(_kind, some)
        return fits[0] if fits and not unclear else None

    def _fit(self, schema: Any, value: Any, place: str) -> Any:
        """The value as fastavro takes it."""
        schema = self._definition(schema)
        if isinstance(schema, list):
            return self._fit_union(schema, value, place)
        kind, logical = _kind(schema), _logical(schema)
        if kind in ("record", "error"):
            return self._fit_record(schema, value, place)
        if kind == "array":
            _expect(isinstance(value, list), "a list", value, place)
            return [self._fit(schema["items"], inner, f"{place}[{at}]") for at, inner in enumerate(value)]
        if kind == "map":
            _expect(isinstance(value, Mapping), "a mapping", value, place)
            return {name: self._fit(schema["values"], inner, f"{place}.{name}") for name, inner in value.items()}
        if kind == "enum":
            _expect(value in schema["symbols"], f"one of {', '.join(schema['symbols'])}", value, place)
            return value
        try:
            if logical == "decimal":
                return _decimal(schema, value)
            if logical in _LOGICAL:
                return _LOGICAL[logical].fit(schema, value)
            return _FITS[kind](schema, value)
        except (ValueError, TypeError, KeyError, InvalidOperation) as error:
            named = f"{kind} ({logical})" if logical else kind
            raise ValueError(
                f"field {place or '(the value)'}: {_shown(value)} is not a valid {named}: {error}"
            ) from None

    def _fit_record(self, schema: Any, value: Any, place: str) -> dict[str, Any]:
        _expect(isinstance(value, Mapping), f"a record {schema['name']}", value, place)
        fitted = {}
        for member in schema["fields"]:
            name = member["name"]
            where = f"{place}.{name}" if place else name
            if name in value:
                fitted[name] = self._fit(member["type"], value[name], where)
            elif "default" in member:
                fitted[name] = in_its_branch(
                    member["type"], self._finished(member["type"], member["default"], singles=False)
                )
            else:
                raise ValueError(f"field {where} is missing, and schema {schema['name']} has no default for it")
        return fitted

    def _fit_union(self, branches: list[Any], value: Any, place: str) -> Any:
        if value is None and "null" in branches:
            return None
        problems = []
        for branch in dates_first(branches):
            try:
                fitted = self._fit(branch, value, place)
            except ValueError as problem:
                problems.append(str(problem))
                continue
            # By the name, fastavro knows the type: it would write a time as the first type that can hold it, a date for example.
            return branch_name(branch), fitted
        raise ValueError(f"field {place or '(the value)'} fits no type of its union: {'; '.join(problems)}")

    def _mismatch(self, writer: Any, reader: Any, other: Avro, place: str, within: frozenset[Any]) -> str | None:
        writer, reader = self._definition(writer), other._definition(reader)
        if isinstance(writer, list):
            return next(filter(None, (self._mismatch(b, reader, other, place, within) for b in writer)), None)
        if isinstance(reader, list):
            found = [self._mismatch(writer, branch, other, place, within) for branch in reader]
            unclear = next((one for one in found if one is not None and one.endswith(UNCLEAR)), None)
            return None if None in found else unclear or f"{place}: no type of the reader's union fits {_kind(writer)}"
        one, two = _kind(writer), _kind(reader)
        if two not in _READS.get(one, {one}):
            return f"{place} is written as {one} and read as {two}"
        if (what := disagreement(writer, reader)) is not None:
            return f"{place} is {what}{UNCLEAR}"
        if one == "array":
            return self._mismatch(writer["items"], reader["items"], other, f"{place}[]", within)
        if one == "map":
            return self._mismatch(writer["values"], reader["values"], other, f"{place}.*", within)
        if one == "record" and (key := (writer["name"], reader["name"])) not in within:
            known = {member["name"]: member for member in writer["fields"]}
            for member in reader["fields"]:
                names = [member["name"], *member.get("aliases", ())]
                match = next((known[name] for name in names if name in known), None)
                if match is None and "default" not in member:
                    return f"field {member['name']!r} of {reader['name']} is not written, and has no default"
                if match is not None:
                    where = f"field {member['name']!r}"
                    problem = self._mismatch(match["type"], member["type"], other, where, within | {key})
                    if problem is not None:
                        return problem
        return None


#: Type that a value was written as -> the types that it may be read as.
_READS = {
    "int": {"int", "long", "float", "double"},
    "long": {"long", "float", "double"},
    "float": {"float", "double"},
    "string": {"string", "bytes"},
    "bytes": {"bytes", "string"},
}


def _has_fields(schema: Any, value: Any) -> bool:
    return _kind(schema) != "record" or {member["name"] for member in schema["fields"]} == value.keys()


def _mentions(schema: Any, name: str) -> bool:
    if isinstance(schema, dict):
        parts = [schema.get(key) for key in ("type", "items", "values", "fields")]
        return any(_mentions(part, name) for part in parts)
    return any(_mentions(part, name) for part in schema) if isinstance(schema, list) else bool(schema == name)


def _expect(holds: bool, what: str, value: Any, place: str) -> None:
    if not holds:
        raise ValueError(f"field {place or '(the value)'}: {_shown(value)} is not {what}")


def _shown(value: Any) -> str:
    return str(value)[:60] if isinstance(value, Decimal) else repr(value)[:60]


def _whole(schema: Any, value: Any) -> int:
    if isinstance(value, Decimal) and value == value.to_integral_value():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("it is not a whole number")
    limit = _RANGE[_kind(schema)]
    if not -limit <= value < limit:
        raise ValueError("it is too large")
    return value


def _float(_schema: Any, value: Any) -> float:
    if isinstance(value, bool) or not (isinstance(value, int | Decimal) or value in ("NaN", "Infinity", "-Infinity")):
        raise TypeError("it is not a number")
    return float(value)


def _bytes(schema: Any, value: Any) -> bytes:
    found = base64.b64decode(_text(schema, value), validate=True)
    if _kind(schema) == "fixed" and len(found) != schema["size"]:
        raise ValueError(f"it has {len(found)} bytes, not {schema['size']}")
    return found


def _text(_schema: Any, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("it is not text")
    return value


def _boolean(_schema: Any, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("it is neither true nor false")
    return value


def _null(_schema: Any, value: Any) -> None:
    if value is not None:
        raise TypeError("it is not null")


def _decimal(schema: Any, value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        raise TypeError("it is not a number")
    number, scale = Decimal(value), schema.get("scale", 0)
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError("it is not a finite number")
    spelled = "".join(map(str, digits)).rstrip("0")
    needed = -(exponent + len(digits) - len(spelled)) if spelled else 0
    whole = number.adjusted() + 1 if spelled else 0
    if needed > scale or whole + scale > schema["precision"]:
        raise ValueError(f"it does not fit precision {schema['precision']} and scale {scale}")
    # From the digits, because arithmetic would round to the context's precision.
    shift = exponent + scale
    unscaled = (
        int("".join(map(str, digits))) * 10**shift if shift >= 0 else int("".join(map(str, digits))) // 10**-shift
    )
    return Decimal((int(number.is_signed()), tuple(map(int, str(unscaled))), -scale))


def _moment(schema: Any, value: Any) -> Any:
    if not isinstance(value, str):
        return _whole(schema, value)
    when = datetime.fromisoformat(value)
    _whole_millis(schema, when.microsecond)
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _local(schema: Any, value: Any) -> Any:
    if not isinstance(value, str):
        return _whole(schema, value)
    when = datetime.fromisoformat(value)
    if when.tzinfo is not None:
        raise ValueError("a local timestamp has no time zone")
    _whole_millis(schema, when.microsecond)
    return when


def _date(schema: Any, value: Any) -> Any:
    return date.fromisoformat(value) if isinstance(value, str) else _whole(schema, value)


def _time(schema: Any, value: Any) -> Any:
    if not isinstance(value, str):
        return _whole(schema, value)
    found = time.fromisoformat(value)
    _whole_millis(schema, found.microsecond)
    return found


def _whole_millis(schema: Any, microsecond: int) -> None:
    if str(_logical(schema)).endswith("millis") and microsecond % 1000:
        raise ValueError("it has microseconds, which the schema's milliseconds cannot hold")


_FITS: dict[str, Callable[[Any, Any], Any]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _whole,
    "long": _whole,
    "float": _float,
    "double": _float,
    "string": _text,
    "bytes": _bytes,
    "fixed": _bytes,
}


class _Logical(NamedTuple):
    """A logical type that is not decimal."""

    type: str
    """DuckDB's type."""
    of_default: Callable[[Any], Any]
    """The value that a schema's default means: of a number, or of text for a UUID."""
    fit: Callable[[Any, Any], Any]
    """The value of JSON as fastavro takes it."""


_LOGICAL: dict[str | None, _Logical] = {
    "timestamp-millis": _Logical(INSTANT, lambda ms: after_epoch(ms * 1000).replace(tzinfo=UTC), _moment),
    "timestamp-micros": _Logical(INSTANT, lambda micros: after_epoch(micros).replace(tzinfo=UTC), _moment),
    "local-timestamp-millis": _Logical(LOCAL, lambda ms: after_epoch(ms * 1000), _local),
    "local-timestamp-micros": _Logical(LOCAL, after_epoch, _local),
    "date": _Logical(DATE, day_after_epoch, _date),
    "time-millis": _Logical(TIME, lambda ms: after_epoch(ms * 1000).time(), _time),
    "time-micros": _Logical(TIME, lambda micros: after_epoch(micros).time(), _time),
    "uuid": _Logical(UUID_TYPE, UUID, lambda schema, value: UUID(_text(schema, value))),
}
