"""Turns rows into records of a Kafka topic: a key of bytes, and a JSON object."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from onceproof.sinks.errors import RecordRefused, SinkError

Record = tuple[bytes | None, bytes]
"""Key and value."""

Addressed = tuple[str, bytes | None, bytes]
"""Topic, key and value."""


class RecordFormat:
    """Makes the record of a row. The column ``key`` is its key, the columns ``value`` (None: all) are its value.

    A key of bytes stays as it is, anything else becomes UTF-8 text, NULL stays NULL. Without ``key`` all keys are NULL.
    """

    def __init__(self, topic: str, key: str | None, value: Sequence[str] | None) -> None:
        self._topic = topic
        self._key = key
        self._value = value

    def demand_names(self, names: Sequence[str]) -> None:
        """Raise `SinkError` if two columns of a batch have one name: a row as a dict would hold only the second of them."""
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SinkError(
                f"the batch has several columns {twice[0]!r}, and a JSON object has a name once",
                hint="rename or drop one of them, as after a join",
            )

    def __call__(self, row: dict[str, Any]) -> Record:
        """Raises `SinkError` for a missing column, `RecordRefused` for a value that JSON lacks."""
        try:
            key = row[self._key] if self._key is not None else None
            value = row if self._value is None else {name: row[name] for name in self._value}
        except KeyError as missing:
            raise SinkError(
                f"the batch has no column {missing.args[0]!r}, but {', '.join(row)}",
                hint="name columns of the batch as key and value of the sink",
            ) from None
        if key is not None and not isinstance(key, bytes):
            key = str(key).encode()
        try:
            return key, _json(value)
        except (TypeError, ValueError):
            raise self._not_json(value) from None

    def _not_json(self, row: dict[str, Any]) -> RecordRefused:
        """The error for the first column that cannot be written."""
        name = next(name for name, value in row.items() if not _has_json(value))
        return RecordRefused(
            f"column {name!r} of topic {self._topic!r} holds {reprlib.repr(row[name])}, which has no form in JSON",
            hint="replace NaN, infinity and bytes in the query (nanvl, when, base64), or cast the column to string",
        )


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), default=_plain, allow_nan=False).encode()


def _has_json(value: Any) -> bool:
    try:
        _json(value)
    except (TypeError, ValueError):
        return False
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
