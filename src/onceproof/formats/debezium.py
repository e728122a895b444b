"""Debezium's change events: the row before and after a change, with or without Kafka Connect's schema around them.

Fields whose Connect schema names a logical type (``org.apache.kafka.connect.data.Decimal``, ``io.debezium.time.*``) become that
type; without the schema they stay what JSON says.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, time
from decimal import Decimal
from typing import Any

from onceproof.formats import values
from onceproof.formats.values import (
    DATE,
    DOUBLE,
    INSTANT,
    LOCAL,
    SINGLE,
    TIME,
    Path,
    after_epoch,
    day_after_epoch,
    unscaled_decimal,
)

#: create, update, delete, read (snapshot), truncate, message.
OPERATIONS = ("c", "u", "d", "r", "t", "m")
#: The column of the operation in an output, named as by Debezium's own ``ExtractNewRecordState``.
OPERATION = "__op"

#: What Connect's JSON converter puts around an event.
_AROUND = ("schema", "payload")
#: Connect's logical type of a number -> DuckDB's type, and the value that a number means.
_LOGICAL: dict[Any, tuple[str, Callable[[int], Any]]] = {
    "org.apache.kafka.connect.data.Timestamp": (INSTANT, lambda ms: after_epoch(ms * 1000).replace(tzinfo=UTC)),
    "io.debezium.time.Timestamp": (LOCAL, lambda ms: after_epoch(ms * 1000)),
    "io.debezium.time.MicroTimestamp": (LOCAL, after_epoch),
    "org.apache.kafka.connect.data.Date": (DATE, day_after_epoch),
    "io.debezium.time.Date": (DATE, day_after_epoch),
    "org.apache.kafka.connect.data.Time": (TIME, lambda ms: _time(ms * 1000)),
    "io.debezium.time.Time": (TIME, lambda ms: _time(ms * 1000)),
    "io.debezium.time.MicroTime": (TIME, lambda micros: _time(micros)),
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_NAME_OF_PRECISION = "connect.decimal.precision"


def unwrapped(value: Any) -> tuple[Any, dict[Path, str]]:
    """The envelope in a value, and the types of its fields as far as a Connect schema names them. Raises `ValueError`."""
    if isinstance(value, Mapping) and value.keys() == {*_AROUND}:
        schema, payload = (value[name] for name in _AROUND)
        return _typed(schema, payload, "payload"), dict(_types(schema, ()))
    return value, {}


def checked(envelope: Any) -> dict[str, Any]:
    """The envelope. Raises `ValueError` for a value that is not a change event."""
    if not isinstance(envelope, Mapping):
        raise ValueError(f"it is not a change event but a {type(envelope).__name__}")
    if envelope.get("op") not in OPERATIONS:
        raise ValueError(f"its op is {envelope.get('op')!r}, and a change event has one of {', '.join(OPERATIONS)}")
    if "before" not in envelope and "after" not in envelope and envelope["op"] not in ("t", "m"):
        raise ValueError("it has neither before nor after")
    return dict(envelope)


def row_of(envelope: Mapping[str, Any], *, keep_operation: bool) -> dict[str, Any] | None:
    """What an output holds after the change: the columns of the row; None after a delete.

    With ``keep_operation``, for an output whose effects are the changes themselves, the row has the column `OPERATION`, and
    after a delete the columns of the row that was deleted. Raises `ValueError` for a change that is not one of a row.
    """
    operation = envelope["op"]
    deleted = operation == "d"
    row = envelope.get("before" if deleted else "after")
    if deleted and not keep_operation:
        return None
    if not isinstance(row, Mapping):
        raise ValueError(f"op {operation!r} has no row {'before' if deleted else 'after'} the change")
    return {**row, OPERATION: operation} if keep_operation else dict(row)


def envelope_of(value: Any, timestamp_ms: int) -> dict[str, Any]:
    """The change event for a JSON object: its ``before`` and ``after`` if it has them, else an insert of the object."""
    if not isinstance(value, Mapping):
        raise ValueError(f"it is not a JSON object but a {type(value).__name__}")
    if not {"before", "after"} <= value.keys():
        return {"before": None, "after": value, "op": "c", "ts_ms": timestamp_ms}
    before, after = value["before"], value["after"]
    if before is None and after is None:
        raise ValueError("both before and after are null")
    operation = "c" if before is None else "d" if after is None else "u"
    return {"before": before, "after": after, "op": operation, "ts_ms": timestamp_ms}


def _typed(schema: Any, value: Any, place: str) -> Any:
    """The value with the logical types that Connect's schema gives its fields."""
    if value is None or not isinstance(schema, Mapping):
        return value
    name, kind = schema.get("name"), schema.get("type")
    try:
        if name == _DECIMAL:
            return _fitting(_decimal(value, _scale(schema)), _precision(schema))
        if name == "io.debezium.data.VariableScaleDecimal":
            return _decimal(value["value"], int(value["scale"]))
        if name in _LOGICAL:
            return _LOGICAL[name][1](_whole(value))
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"field {place}: {str(value)[:60]!r} is not a {name}: {error}") from None
    if kind == "struct" and isinstance(value, Mapping):
        known = {member.get("field"): member for member in schema.get("fields") or ()}
        return {field: _typed(known.get(field), inner, f"{place}.{field}") for field, inner in value.items()}
    if kind == "array" and isinstance(value, list):
        return [_typed(schema.get("items"), inner, f"{place}[]") for inner in value]
    return value


def _types(schema: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if not isinstance(schema, Mapping):
        return
    name, kind = schema.get("name"), schema.get("type")
    if name == _DECIMAL:
        yield path, values.decimal_type(_precision(schema), _scale(schema)) or values.SHOWN
        return
    if name in _LOGICAL:
        yield path, _LOGICAL[name][0]
        return
    if kind in ("float", "double"):
        yield path, SINGLE if kind == "float" else DOUBLE
    elif path:
        yield path, values.WHOLE if kind in ("int8", "int16", "int32", "int64") else values.SHOWN
    if kind == "struct":
        for member in schema.get("fields") or ():
            yield from _types(member, (*path, member.get("field")))
    elif kind == "array":
        yield from _types(schema.get("items"), (*path, None))


def _scale(schema: Mapping[str, Any]) -> int:
    return int((schema.get("parameters") or {})["scale"])


def _precision(schema: Mapping[str, Any]) -> int:
    return int((schema.get("parameters") or {}).get(_NAME_OF_PRECISION, values.MOST_DIGITS))


def _decimal(unscaled: Any, scale: int) -> Decimal:
    return unscaled_decimal(base64.b64decode(unscaled, validate=True), scale)


def _fitting(number: Decimal, precision: int) -> Decimal:
    """The number. Raises `ValueError` if it has more digits than its column, in which it would be NULL without a word."""
    if len(number.as_tuple().digits) > precision:
        raise ValueError(f"it has more than {precision} digits")
    return number


def _whole(value: Any) -> int:
    """A whole number, not the one next to a fraction."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("it is not a whole number")
    return value


def _time(micros: int) -> time:
    if not 0 <= micros < 86_400_000_000:
        raise ValueError("it is not within a day")
    return after_epoch(micros).time()
