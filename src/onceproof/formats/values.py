"""Decoded values as JSON text, without losing a digit."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID

from onceproof.values import documents

Path = tuple[str | None, ...]
"""The names of nested fields. None is the step from a list to its elements, `ANY` that from a map to its values."""

ANY = "*"
#: DuckDB's types for values whose type JSON does not show.
INSTANT, LOCAL, DATE, TIME, UUID_TYPE, SINGLE, DOUBLE = (
    "TIMESTAMP WITH TIME ZONE",
    "TIMESTAMP",
    "DATE",
    "TIME",
    "UUID",
    "FLOAT",
    "DOUBLE",
)
#: In place of a DuckDB type: JSON shows the type of the field, which is a whole number, or another one.
WHOLE, SHOWN = "whole number", ""
#: The most digits of a DECIMAL. Longer ones become JSON, which keeps every digit too.
MOST_DIGITS = 38
_MOST_ZEROS = 100


def decimal_type(precision: int, scale: int) -> str | None:
    """DuckDB's type for such decimals; None if it has none."""
    return f"DECIMAL({precision},{scale})" if 0 <= scale <= precision <= MOST_DIGITS else None


def merge_types(known: dict[Path, str], more: Mapping[Path, str]) -> None:
    """Add ``more`` to ``known``. If two schemas give a field different types, it has the one that holds both, or none."""
    for path, kind in more.items():
        known[path] = kind if known.get(path, kind) == kind else _both(known[path], kind)


def _both(one: str, other: str) -> str:
    if one.startswith("DECIMAL(") and other.startswith("DECIMAL("):
        (p, s), (q, t) = (map(int, kind[len("DECIMAL(") : -1].split(",")) for kind in (one, other))
        scale = max(s, t)
        return decimal_type(max(p - s, q - t) + scale, scale) or ""
    if {one, other} in ({WHOLE, SINGLE}, {WHOLE, DOUBLE}):
        return one if other == WHOLE else other
    return SHOWN  # JSON's own types decide: values of one schema would not be values of the other one's type


def document(value: Any) -> str:
    """The JSON object of a decoded record. Raises `TypeError` if it is not a record, or has a value without a JSON form."""
    if not isinstance(value, Mapping):
        raise TypeError(f"the value is not a record but a {type(value).__name__}: only records have columns")
    return documents.written(plain(value))


def plain(value: Any) -> Any:
    """The value as `documents.written` takes it: numbers keep their digits, times are ISO 8601, bytes are base64."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, int):
        return documents.Number(str(value))
    if isinstance(value, Decimal):
        # 1e400 stays as it is: with all its zeros it would take no end of memory to write 1e999999999.
        short = value.is_finite() and abs(value.adjusted()) <= _MOST_ZEROS
        return documents.Number(f"{value:f}" if short else str(value)) if value.is_finite() else str(value)
    if isinstance(value, float):
        return documents.Number(repr(value)) if math.isfinite(value) else _not_finite(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def single(value: float) -> Any:
    """A number of 32 bits with the fewest digits that name it, as Java and Spark print it: 0.1, not 0.10000000149011612."""
    if not math.isfinite(value):
        return _not_finite(value)
    for digits in range(6, 9):
        text = f"{value:.{digits}g}"
        if struct.pack("<f", float(text)) == struct.pack("<f", value):
            return documents.Number(repr(float(text)))
    return documents.Number(repr(float(f"{value:.9g}")))


def unscaled_decimal(unscaled: bytes, scale: int) -> Decimal:
    """The decimal of an integer, in big-endian bytes, with ``scale`` digits after the point."""
    number = int.from_bytes(unscaled, "big", signed=True)
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def after_epoch(micros: int) -> datetime:
    """The moment so many microseconds after 1970 began, without a time zone."""
    return datetime(1970, 1, 1) + timedelta(microseconds=micros)


def day_after_epoch(days: int) -> date:
    return date(1970, 1, 1) + timedelta(days=days)


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def parse(text: bytes) -> Any:
    """A JSON text with its numbers as `Decimal` and `int`. Raises `ValueError`."""
    return json.loads(text, parse_float=Decimal, parse_constant=_refuse)


def _refuse(constant: str) -> NoReturn:
    # Python alone reads it: a parser that follows RFC 8259 refuses the whole value.
    raise ValueError(f"{constant} is not JSON")
