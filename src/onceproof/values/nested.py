"""The canonical text of a nested value: it depends on what a list or an object holds, not on how it is written.

Objects are equal whatever the order of their members (RFC 8259, section 4); of members with the same name, the last counts.
If the expected type is a STRUCT, a member that is null equals one that is missing: a STRUCT has all members of its type.
Numbers are equal if their values are (``1.0`` and ``1``, ``1e3`` and ``1000``), to the last digit; or, if the expected type has
a DOUBLE or a FLOAT there, if they are the same double or float. A DECIMAL or a number of 128 bits may be written as a string.
Postgres writes an array as ``{1,NULL,"a b"}`` (its documentation, section 8.15.6) and not as JSON; if the expected type is a
list, both are read.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any

import duckdb

from onceproof.values.documents import Number, parse

#: The SQL function: (text, DuckDB type) -> canonical text.
FUNCTION = "canonical_nested"
#: The same for JSON only, without arrays as Postgres writes them: ``{}`` is an object, and not an empty list.
JSON_FUNCTION = "canonical_json"


def register(db: duckdb.DuckDBPyConnection) -> None:
    db.create_function(FUNCTION, canonical_nested, ["VARCHAR", "VARCHAR"], "VARCHAR")
    db.create_function(JSON_FUNCTION, canonical_json, ["VARCHAR", "VARCHAR"], "VARCHAR")


def canonical_nested(text: str, sql_type: str) -> str:
    """``text`` as minified JSON with sorted members and shortest numbers; unchanged if it is not such a value."""
    return _canonical(text, sql_type, array=sql_type.endswith("]") and text.startswith("{"))


def canonical_json(text: str, sql_type: str) -> str:
    """As `canonical_nested`, for JSON: arrays as Postgres writes them are not read."""
    return _canonical(text, sql_type, array=False)


def _canonical(text: str, sql_type: str, *, array: bool) -> str:
    try:
        value = _array(text, sql_type) if array else parse(text)
        result = _written(value, _tree(sql_type))
        result.encode()  # half of a surrogate pair is valid JSON, but not valid text
        return result
    except (ValueError, ArithmeticError, RecursionError):
        return text


# A number whose point would move farther than this is written with an exponent.
_FARTHEST = 64

#: Types of numbers that many JSON readers would round: they may be written as strings.
EXACT_NUMBERS = {"DECIMAL", "HUGEINT", "UHUGEINT", "BIGNUM"}

_PIECE = re.compile(r'[{},]|"(?:[^"\\]|\\.)*"|[^{},"\\\s](?:[^{},"\\]|\\.)*', re.DOTALL)
_NUMERIC = ("INT", "DECIMAL", "DOUBLE", "FLOAT", "BIGNUM")


@dataclass(frozen=True)
class _Type:
    """A DuckDB type. ``members``: those of a STRUCT; ``element``: of a list or an array, or the values of a MAP."""

    name: str
    members: Mapping[str, _Type] = field(default_factory=dict)
    element: _Type | None = None

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
        return _Type(name, element=_tree(arguments[1]))
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
    return json.dumps(value, ensure_ascii=False)


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


def _array(text: str, sql_type: str) -> list[Any]:
    """A Postgres array as lists. Raises ValueError for a text that is not an array."""
    element = re.sub(r"(\[\d*\])+$", "", sql_type)
    pieces = _pieces(text)
    if next(pieces) != "{":
        raise ValueError("an array begins with {")
    value = _list(pieces, element)
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


def _list(pieces: Iterator[str], element: str) -> list[Any]:
    """The values between an opening brace, which was already read, and its closing brace."""
    values: list[Any] = []
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


def _element(piece: str, element: str) -> Any:
    if piece == "}":
        raise ValueError("a value is missing")
    if piece.upper() == "NULL":
        return None
    bare = re.sub(r"\\(.)", r"\1", piece[1:-1] if piece.startswith('"') else piece, flags=re.DOTALL)
    if element == "BOOLEAN" and bare in ("t", "f"):
        return bare == "t"
    if any(kind in element for kind in _NUMERIC) and _is_number(bare):
        return Number(bare)
    return bare


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?", text) is not None
