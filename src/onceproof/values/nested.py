"""The canonical text of a nested value: it depends on what a list or an object holds, not on how it is written.

Objects are equal whatever the order of their members (RFC 8259, section 4); of members with the same name, the last counts.
If the expected type is a STRUCT, a member that is null equals one that is missing: a STRUCT has all members of its type.
Numbers are equal if their values are (``1.0`` and ``1``, ``1e3`` and ``1000``), to the last digit; or, if the expected type has
a DOUBLE or a FLOAT there, if they are the same double or float. A DECIMAL or a number of 128 bits may be written as a string.
A UUID is compared in any case, and a BLOB is hex or base64. Postgres writes an array as ``{1,NULL,"a b"}``, perhaps with its bounds before it, and a
composite as ``(1,,"a b")`` (its documentation, sections 8.15.6 and 8.16.6) and not as JSON; if the expected type is a list or a
STRUCT, both are read.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any

import duckdb

from onceproof.values.documents import Number, parse, written

#: The SQL function: (text, DuckDB type) -> canonical text.
FUNCTION = "canonical_nested"
#: The same for JSON only, without arrays and composites as Postgres writes them: ``{}`` is an object, and not an empty list.
JSON_FUNCTION = "canonical_json"
#: SQL functions: (JSON text that DuckDB wrote, DuckDB type) -> the same with each BLOB as hex; and back.
BLOB_FUNCTION, HEX_FUNCTION = "blobs_as_hex", "hex_as_blobs"


def canonical_nested(text: str, sql_type: str) -> str:
    """``text`` as minified JSON with sorted members and shortest numbers; unchanged if it is not such a value."""
    is_array = sql_type.endswith("]") and (text.startswith("{") or _BOUNDS.match(text) is not None)
    return _canonical(text, sql_type, postgres=is_array or (sql_type.startswith("STRUCT(") and text.startswith("(")))


def canonical_json(text: str, sql_type: str) -> str:
    """As `canonical_nested`, for JSON: arrays as Postgres writes them are not read."""
    return _canonical(text, sql_type, postgres=False)


def blobs_as_hex(text: str, sql_type: str) -> str:
    """``text`` as DuckDB writes a nested value as JSON, with each BLOB as Postgres' ``\\x`` hex.

    DuckDB writes bytes that are printable ASCII as they are, which could be hex or base64 of others, and the rest as ``\\xNN``.
    """
    return written(_with_blobs(_as_hex, parse(text), _tree(sql_type)))


def hex_as_blobs(text: str, sql_type: str) -> str:
    """A text that DuckDB casts to the type, from one that `blobs_as_hex` made."""
    return written(_with_blobs(_from_hex, parse(text), _tree(sql_type)))


def _with_blobs(convert: Callable[[str], str], value: Any, type_: _Type) -> Any:
    """The value with each text of a BLOB converted."""
    if isinstance(value, dict):
        return {name: _with_blobs(convert, inner, type_.inner(name)) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_blobs(convert, inner, type_.inner(None)) for inner in value]
    return convert(value) if type_.name == "BLOB" and isinstance(value, str) else value


def _as_hex(text: str) -> str:
    return "\\x" + _ESCAPED_BYTE.sub(lambda found: chr(int(found[1], 16)), text).encode("latin-1").hex()


def _from_hex(text: str) -> str:
    return "".join(f"\\x{byte:02X}" for byte in bytes.fromhex(text.removeprefix("\\x")))


def _canonical(text: str, sql_type: str, *, postgres: bool) -> str:
    try:
        type_ = _tree(sql_type)
        value = _of_postgres(text, type_) if postgres else parse(text)
        result = _written(value, type_)
        result.encode()  # half of a surrogate pair is valid JSON, but not valid text
        return result
    except (ValueError, ArithmeticError, RecursionError):
        return text


# A number whose point would move farther than this is written with an exponent.
_FARTHEST = 64

#: Types of numbers that many JSON readers would round: they may be written as strings.
EXACT_NUMBERS = {"DECIMAL", "HUGEINT", "UHUGEINT", "BIGNUM"}

_ESCAPED_BYTE = re.compile(r"\\x([0-9A-F]{2})")
_PIECE = re.compile(r'[{},]|"(?:[^"\\]|\\.)*"|[^{},"\\\s](?:[^{},"\\]|\\.)*', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
#: ``[0:1]=`` before an array whose first index is not 1.
_BOUNDS = re.compile(r"(?:\[[+-]?\d+:[+-]?\d+\])+=")
_COMPOSITE_PART = re.compile(r'"((?:[^"\\]|\\.|"")*)"|(?:[^",()\\]|\\.)+', re.DOTALL)
_COMPOSITE_FIELD = re.compile(rf"(?:{_COMPOSITE_PART.pattern})*", re.DOTALL)
#: A date, with a time or without, as Postgres writes it; DuckDB puts the era after the date, in parentheses.
_BEFORE_CHRIST = re.compile(r"^([0-9]+-[0-9]+-[0-9]+)(.*) BC$")
_NUMERIC = ("INT", "DECIMAL", "DOUBLE", "FLOAT", "BIGNUM")


@dataclass(frozen=True)
class _Type:
    """A DuckDB type. ``members``: those of a STRUCT; ``element``: of a list or an array, or the values of a MAP."""

    name: str
    members: Mapping[str, _Type] = field(default_factory=dict)
    element: _Type | None = None
    keys: _Type | None = None
    """Of a MAP."""

    def inner(self, name: str | None) -> _Type:
        return self.members.get(name or "", self.element or _ANY)


_ANY = _Type("JSON")


@lru_cache(maxsize=256)
def _tree(sql_type: str) -> _Type:
    """Parse the text of a DuckDB type. The values in a UNION or an unknown type are compared as JSON."""
    sql_type = sql_type.strip()
    if sql_type.endswith("]"):
        return _Type("LIST", element=_tree(sql_type[: sql_type.rindex("[")]))
    name, _, rest = sql_type.partition("(")
    arguments = list(_split(rest[:-1])) if rest.endswith(")") else []
    if name == "STRUCT" and arguments:
        return _Type(name, members=dict(map(_member, arguments)))
    if name == "MAP" and len(arguments) == 2:  # its keys are names in JSON
        return _Type(name, element=_tree(arguments[1]), keys=_tree(arguments[0]))
    return _Type(name)


def _split(text: str) -> Iterator[str]:
    """Split at commas outside of quotes and parentheses."""
    depth, quoted, start = 0, "", 0
    for at, letter in enumerate(text):
        if quoted:
            quoted = "" if letter == quoted else quoted
        elif letter in "\"'":
            quoted = letter
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        elif letter == "," and not depth:
            yield text[start:at].strip()
            start = at + 1
    yield text[start:].strip()


def _member(argument: str) -> tuple[str, _Type]:
    named = re.match(r'"((?:[^"]|"")*)"\s+(.*)|(\S+)\s+(.*)', argument, re.DOTALL)
    if named is None:
        raise ValueError("not a member of a STRUCT")
    if named[1] is not None:
        return named[1].replace('""', '"'), _tree(named[2])
    return named[3], _tree(named[4])


def _written(value: Any, type_: _Type) -> str:
    if isinstance(value, dict):
        if type_.keys is not None and type_.keys.name == "UUID":
            value = {name.lower(): inner for name, inner in value.items()}
        pieces = (
            f"{json.dumps(name, ensure_ascii=False)}:{_written(value[name], type_.inner(name))}"
            for name in sorted(value)
            if value[name] is not None or name not in type_.members
        )
        return "{" + ",".join(pieces) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_written(inner, type_.inner(None)) for inner in value) + "]"
    if type_.name in EXACT_NUMBERS and isinstance(value, str) and _is_number(value):
        value = Number(value)
    if isinstance(value, Number):
        return _digits(value, type_.name)
    if type_.name == "UUID" and isinstance(value, str):
        value = value.lower()
    if type_.name == "BLOB" and isinstance(value, str):
        value = _hex(value)
    return json.dumps(value, ensure_ascii=False)


def _hex(text: str) -> str:
    """The bytes of a text in hex or base64 as hex; unchanged if it is neither."""
    if text.startswith("\\x"):
        return text.lower()
    try:
        return "\\x" + base64.b64decode(text, validate=True).hex()
    except ValueError:
        return text


def _digits(number: str, kind: str) -> str:
    """The shortest text of a number."""
    exact = Decimal(number)
    if kind in ("DOUBLE", "FLOAT"):
        double = float(number)
        if kind == "FLOAT":
            with suppress(OverflowError):  # then it is not a float, and equals none
                double = struct.unpack("f", struct.pack("f", double))[0]
        if math.isinf(double):
            return json.dumps("Infinity" if double > 0 else "-Infinity")
        exact = Decimal(repr(double))
    sign, digits, exponent = exact.as_tuple()
    assert isinstance(exponent, int), "neither NaN nor an infinity"
    whole = "".join(map(str, digits)).lstrip("0")
    shortest = whole.rstrip("0")
    exponent += len(whole) - len(shortest)
    if not shortest:
        return "0"
    minus = "-" if sign else ""
    if not -_FARTHEST <= exponent <= _FARTHEST:
        return f"{minus}{shortest}e{exponent}"
    if exponent >= 0:
        return minus + shortest + "0" * exponent
    padded = shortest.rjust(1 - exponent, "0")
    return f"{minus}{padded[:exponent]}.{padded[exponent:]}"


def _of_postgres(text: str, type_: _Type) -> Any:
    """A value as Postgres' output function of that type writes it. Raises ValueError for a text that is not such a value."""
    if type_.name == "LIST":
        return _array(text, type_)
    if type_.members:
        return _composite(text, type_)
    if type_.name == "JSON":
        try:
            return parse(text)
        except ValueError:
            return text
    if type_.name == "BOOLEAN" and text in ("t", "f"):
        return text == "t"
    if any(kind in type_.name for kind in _NUMERIC) and _is_number(text):
        return Number(text)
    if type_.name == "DATE" or type_.name.startswith("TIMESTAMP"):
        return _BEFORE_CHRIST.sub(r"\1 (BC)\2", text)
    return text


def _array(text: str, type_: _Type) -> list[Any]:
    """A Postgres array as lists. Its bounds are not part of its content."""
    pieces = _pieces(_BOUNDS.sub("", text))
    if next(pieces) != "{":
        raise ValueError("an array begins with {")
    value = _list(pieces, type_)
    if next(pieces, None) is not None:
        raise ValueError("something follows the array")
    return value


def _pieces(text: str) -> Iterator[str]:
    end = 0
    for match in _PIECE.finditer(text):
        if text[end : match.start()].strip():
            raise ValueError("not an array")
        end = match.end()
        yield match.group().strip()
    if text[end:].strip():
        raise ValueError("not an array")


def _list(pieces: Iterator[str], type_: _Type) -> list[Any]:
    """The values between an opening brace, which was already read, and its closing brace."""
    values: list[Any] = []
    element = type_.element or _ANY
    expected = "value or }"
    for piece in pieces:
        if piece == "}" and expected != "value":
            return values
        if (piece == ",") != (expected == ", or }"):
            raise ValueError("not an array")
        if piece == ",":
            expected = "value"
            continue
        values.append(_list(pieces, element) if piece == "{" else _element(piece, element))
        expected = ", or }"
    raise ValueError("the array does not end")


def _element(piece: str, element: _Type) -> Any:
    if piece == "}":
        raise ValueError("a value is missing")
    if piece.upper() == "NULL":
        return None
    if not piece.startswith('"'):
        return _of_postgres(_ESCAPED.sub(r"\1", piece), element)
    return _of_postgres(_ESCAPED.sub(r"\1", piece[1:-1]), element)


def _composite(text: str, type_: _Type) -> dict[str, Any]:
    """A Postgres composite, ``(1,"a b",)``, by the order of its members: it has no names, and nothing is a null."""
    if not (text.startswith("(") and text.endswith(")")):
        raise ValueError("a composite begins and ends with a parenthesis")
    found, at = [], 0
    inner = text[1:-1]
    while at <= len(inner):
        match = _COMPOSITE_FIELD.match(inner, at)
        assert match is not None, "it matches an empty field"
        if match.end() < len(inner) and inner[match.end()] != ",":
            raise ValueError("not a composite")
        found.append(match.group() or None)
        at = match.end() + 1
    if len(found) != len(type_.members):
        raise ValueError(f"{len(found)} fields for {len(type_.members)} members")
    return {
        name: None if part is None else _of_postgres(_unquoted(part), member)
        for (name, member), part in zip(type_.members.items(), found, strict=True)
    }


def _unquoted(field_: str) -> str:
    parts = _COMPOSITE_PART.finditer(field_)
    return "".join(
        _ESCAPED.sub(r"\1", part[1].replace('""', '"')) if part[1] is not None else _ESCAPED.sub(r"\1", part[0])
        for part in parts
    )


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?", text) is not None


def _maker(name: str, function: Callable[[str, str], str]) -> Callable[[duckdb.DuckDBPyConnection], object]:
    return lambda db: db.create_function(name, function, ["VARCHAR", "VARCHAR"], "VARCHAR")


#: Name of each SQL function -> what makes it.
FUNCTIONS: dict[str, Callable[[duckdb.DuckDBPyConnection], object]] = {
    name: _maker(name, function)
    for name, function in (
        (FUNCTION, canonical_nested),
        (JSON_FUNCTION, canonical_json),
        (BLOB_FUNCTION, blobs_as_hex),
        (HEX_FUNCTION, hex_as_blobs),
    )
}
