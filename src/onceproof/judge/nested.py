"""The canonical text of a nested value: what a list or an object holds counts, not how somebody wrote it down.

Objects are equal whatever the order of their members (RFC 8259, section 4); integers of 64 bits if their digits are, all other
numbers if they are the same double (``1.0`` and ``1``, ``1e3`` and ``1000``), for more DuckDB does not read in there. Postgres writes an array as ``{1,NULL,"a b"}`` (its documentation, section 8.15.6) and
not as JSON; where the expected type is a list, both are read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb

#: The SQL function: (text, DuckDB type) -> canonical text.
FUNCTION = "canonical_nested"


def register(db: duckdb.DuckDBPyConnection) -> None:
    db.create_function(FUNCTION, canonical_nested, ["VARCHAR", "VARCHAR"], "VARCHAR")


def canonical_nested(text: str, sql_type: str) -> str:
    """``text`` as minified JSON with members in order and numbers in their shortest digits; what is no such value, as it is."""
    try:
        array = sql_type.endswith("]") and text.startswith("{")
        value = _array(text, sql_type) if array else json.loads(text, object_pairs_hook=_members, **_NUMBERS)
        written = _written(value)
        written.encode()  # half of a surrogate pair is JSON, and no text
        return written
    except (ValueError, ArithmeticError, RecursionError):
        return text


class _Number(str):
    """The digits of a JSON number, kept from becoming a float."""


# A point that is moved farther than this stays an exponent.
_FARTHEST = 64

_PIECE = re.compile(r'[{},]|"(?:[^"\\]|\\.)*"|[^{},"\\\s](?:[^{},"\\]|\\.)*', re.DOTALL)
_NUMERIC = ("INT", "DECIMAL", "DOUBLE", "FLOAT", "BIGNUM")


# NaN and the infinities are strings in what Spark writes.
_NUMBERS: dict[str, Any] = {"parse_float": _Number, "parse_int": _Number, "parse_constant": str}


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):  # which of them counts is anybody's guess (RFC 8259): equal to nothing
        raise ValueError("a name stands twice in one object")
    return members


def _written(value: Any) -> str:
    if isinstance(value, dict):
        inner = (f"{json.dumps(name, ensure_ascii=False)}:{_written(value[name])}" for name in sorted(value))
        return "{" + ",".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return _digits(value) if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)


def _digits(number: str) -> str:
    """The one shortest text of a number."""
    exact = re.fullmatch("-?[0-9]+", number) is not None and -(2**63) <= int(number) < 2**64
    double = float(number)
    if not exact and math.isinf(double):
        return json.dumps("Infinity" if double > 0 else "-Infinity")
    sign, digits, exponent = Decimal(number if exact else repr(double)).as_tuple()
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
    """A Postgres array as lists. Raises ValueError for a text that is none."""
    element = re.sub(r"(\[\d*\])+$", "", sql_type)
    pieces = _pieces(text)
    if next(pieces) != "{":
        raise ValueError("an array begins with {")
    value = _list(pieces, element)
    if next(pieces, None) is not None:
        raise ValueError("something stands behind the array")
    return value


def _pieces(text: str) -> Iterator[str]:
    end = 0
    for match in _PIECE.finditer(text):
        if text[end : match.start()].strip():
            raise ValueError("no array")
        end = match.end()
        yield match.group().strip()
    if text[end:].strip():
        raise ValueError("no array")


def _list(pieces: Iterator[str], element: str) -> list[Any]:
    """What stands between an opening brace, which was read, and its closing one."""
    values: list[Any] = []
    expected = "value or }"
    for piece in pieces:
        if piece == "}" and expected != "value":
            return values
        if (piece == ",") != (expected == ", or }"):
            raise ValueError("no array")
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
        return _Number(bare)
    return bare


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?", text) is not None
