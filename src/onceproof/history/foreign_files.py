"""Reads records and rows from a user's own files, JSON lines or Parquet, one after the other, in flat memory.

A file holds *records* if its first row has ``value`` (or ``value_base64``): rows of ``key``, ``value``, ``partition``,
``offset``, ``timestamp_ms`` and ``visibility``, all but the value optional. A value that is no text stands for its JSON
text. Any other file holds plain *rows*: each is, as a whole, the JSON object that a record's value would be.

Numbers keep their digits as they are written in the file: nothing passes through a float.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from onceproof.errors import UsageError
from onceproof.registry import suggest

Row = tuple[str, dict[str, Any]]
"""The place where a row stands, for messages, and its columns."""

FIELDS = ("key", "key_base64", "value", "value_base64", "partition", "offset", "timestamp_ms", "visibility")
_VISIBILITY = ("committed", "aborted", "open")
_ENDINGS = (".jsonl", ".ndjson", ".parquet")
_BATCH_ROWS = 16_384


#: JSON can name one alone, and no encoding can write it.
_HALF = re.compile("[\ud800-\udfff]")


class Number(str):
    """The digits of a JSON number."""


def rows(path: Path) -> Iterator[Row]:
    """Every row of the file. Raises `UsageError`, with the line or row, for what cannot be read."""
    if path.suffix not in _ENDINGS:
        raise UsageError(
            f"{path} is of no known kind: {path.suffix or 'it has no ending'}", hint="use .jsonl or .parquet"
        )
    if not path.is_file():
        near = sorted(p.name for p in path.parent.glob("*") if p.suffix in _ENDINGS) if path.parent.is_dir() else []
        hint = suggest(path.name, near) if near else None
        raise UsageError(f"file {str(path)!r} does not exist", hint=hint)
    return _parquet(path) if path.suffix == ".parquet" else _json_lines(path)


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Every row of the file as a record: ``key`` and ``value`` as bytes or None, ``partition`` and ``offset`` always there.

    Where the file gives no offsets, records are numbered in their order within each partition; where it gives no
    partition, that is 0. Raises `UsageError` as `rows`, and for fields that no record has.
    """
    numbered: dict[int, int] = {}
    as_records: bool | None = None
    own_offsets: bool | None = None
    for place, row in rows(path):
        if as_records is None:
            as_records = "value" in row or "value_base64" in row
        record: dict[str, Any] = _record(place, row) if as_records else {"key": None, "value": as_json(row).encode()}
        partition = record.setdefault("partition", 0)
        if own_offsets is None:
            own_offsets = "offset" in record
        if own_offsets != ("offset" in record):
            raise UsageError(
                f"{place}: some rows have an offset and others have none", hint="give all of them one, or none"
            )
        least = numbered.get(partition, 0)
        offset = record.setdefault("offset", least)
        if offset < least:
            hint = "sort the file by partition and offset; a record may stand in it once"
            raise UsageError(f"{place}: offset {offset} of partition {partition} comes behind {least - 1}", hint=hint)
        numbered[partition] = offset + 1
        yield record


def _record(place: str, row: dict[str, Any]) -> dict[str, Any]:
    for name in row:
        if name not in FIELDS:
            raise UsageError(f"{place}: a record has no field {name!r}; {suggest(name, list(FIELDS))}")
    record: dict[str, Any] = {"key": _bytes(place, row, "key"), "value": _bytes(place, row, "value")}
    for name in ("partition", "offset", "timestamp_ms"):
        if (given := row.get(name)) is not None:
            record[name] = _count(place, name, given)
    visibility = row.get("visibility")
    if visibility is not None:
        if visibility not in _VISIBILITY:
            raise UsageError(f"{place}: visibility {visibility!r} is none of {', '.join(_VISIBILITY)}")
        record["visibility"] = visibility
    return record


def _bytes(place: str, row: dict[str, Any], name: str) -> bytes | None:
    encoded = row.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise UsageError(f"{place}: {name}_base64 is no base64: {str(encoded)[:60]!r}") from None
    value = row.get(name)
    if value is None or isinstance(value, bytes):
        return value
    return (value if type(value) is str else as_json(value)).encode()


def _count(place: str, name: str, given: Any) -> int:
    if isinstance(given, datetime) and name == "timestamp_ms":
        return int((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp() * 1000)
    digits = str(given)
    if isinstance(given, bool) or not digits.isdecimal():
        raise UsageError(f"{place}: {name} {given!r} is no whole number from 0 on")
    return int(digits)


def as_text(value: Any) -> str | None:
    """A value as a Postgres client would print it: the text that a table's column is compared by."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return as_json(value)


def as_json(value: Any) -> str:
    """The JSON text of a value as `rows` gives it; what JSON has no word for becomes a string."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        fields = (f"{json.dumps(str(name), ensure_ascii=False)}:{as_json(inner)}" for name, inner in value.items())
        return "{" + ",".join(fields) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(as_json, value)) + "]"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float) and value - value != 0:  # NaN and the infinities, for which JSON has no word
        return json.dumps(str(value).replace("inf", "Infinity").replace("nan", "NaN"))
    if isinstance(value, bytes | datetime | date | time):
        return json.dumps(as_text(value))
    return json.dumps(value, ensure_ascii=False, default=str)


def _json_lines(path: Path) -> Iterator[Row]:
    decoder = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=_no_word)
    try:
        lines = path.open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    with lines:
        for number, line in enumerate(lines, start=1):
            place = f"{path}:{number}"
            if not line.strip():
                continue
            try:
                row = decoder.decode(line.decode("utf-8").strip())
            except UnicodeDecodeError as error:
                raise UsageError(f"{place}: not UTF-8 text (byte {error.start} of the line)") from None
            except (ValueError, RecursionError) as error:
                shown = line.strip()[:60].decode(errors="replace")
                raise UsageError(
                    f"{place}: not JSON: {error}: {shown!r}", hint="each line is one JSON object"
                ) from None
            if not isinstance(row, dict):
                raise UsageError(f"{place}: {line.strip().decode()[:60]} is no JSON object", hint="each line is one")
            if b"\\u" in line and (half := _HALF.search(json.dumps(row, ensure_ascii=False))):
                raise UsageError(
                    f"{place}: \\u{ord(half[0]):04x} is half of a surrogate pair, and no character",
                    hint="give bytes that are not text as value_base64",
                )
            yield place, row


def _no_word(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON value; write null, or a string")


def _parquet(path: Path) -> Iterator[Row]:
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                for row in pa.Table.from_batches([batch]).cast(_microseconds(batch.schema)).to_pylist():
                    yield f"{path}, row {number}", row
                    number += 1
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read behind row {number}: {error}") from error


def _microseconds(schema: pa.Schema) -> pa.Schema:
    """Python knows no nanoseconds. A timestamp that has some is refused by the cast, not cut."""
    fields = [
        field.with_type(pa.timestamp("us", field.type.tz)) if pa.types.is_timestamp(field.type) else field
        for field in schema
    ]
    return pa.schema(fields)
