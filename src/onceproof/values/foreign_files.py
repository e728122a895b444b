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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from onceproof.base.errors import UsageError
from onceproof.base.paths import is_file, is_folder
from onceproof.base.registry import suggest

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


def rows(path: Path, *, ending: str | None = None) -> Iterator[Row]:
    """Every row of the file. ``ending``: what its own would be, where it has another one that says the same.

    Raises `UsageError`, with the line or row, for what cannot be read.
    """
    ending = ending or path.suffix
    if ending not in _ENDINGS:
        raise UsageError(
            f"{path} is of no known kind: {path.suffix or 'it has no ending'}", hint="use .jsonl or .parquet"
        )
    if not is_file(path):
        near = sorted(p.name for p in path.parent.glob("*") if p.suffix in _ENDINGS) if is_folder(path.parent) else []
        hint = suggest(path.name, near) if near else None
        raise UsageError(f"file {str(path)!r} does not exist", hint=hint)
    return _parquet(path) if ending == ".parquet" else _json_lines(path)


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
        found: dict[str, Any] = record(place, row) if as_records else {"key": None, "value": as_json(row).encode()}
        partition = found.setdefault("partition", 0)
        if own_offsets is None:
            own_offsets = "offset" in found
        if own_offsets != ("offset" in found):
            raise UsageError(
                f"{place}: some rows have an offset and others have none", hint="give all of them one, or none"
            )
        least = numbered.get(partition, 0)
        offset = found.setdefault("offset", least)
        if offset < least:
            hint = "sort the file by partition and offset; a record may stand in it once"
            raise UsageError(f"{place}: offset {offset} of partition {partition} comes behind {least - 1}", hint=hint)
        numbered[partition] = offset + 1
        yield found


def record(place: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row as a record: ``key`` and ``value`` as bytes or None, and what else it gives."""
    for name in row:
        if name not in FIELDS:
            raise UsageError(f"{place}: a record has no field {name!r}; {suggest(name, list(FIELDS))}")
    found: dict[str, Any] = {"key": _bytes(place, row, "key"), "value": _bytes(place, row, "value")}
    for name in ("partition", "offset", "timestamp_ms"):
        if (given := row.get(name)) is not None:
            found[name] = _count(place, name, given)
    visibility = row.get("visibility")
    if visibility is not None:
        if visibility not in _VISIBILITY:
            raise UsageError(f"{place}: visibility {visibility!r} is none of {', '.join(_VISIBILITY)}")
        found["visibility"] = visibility
    return found


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
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, float) and value - value != 0:
        return _word(value)
    return as_json(value)


def _duration(value: timedelta) -> str:
    """Hours, minutes and seconds, as an INTERVAL is written."""
    microseconds = value // timedelta(microseconds=1)
    seconds, rest = divmod(abs(microseconds), 1_000_000)
    sign = "-" if microseconds < 0 else ""
    return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:06}"


def _word(value: float) -> str:
    """NaN and the infinities, for which JSON has no number."""
    return str(value).replace("inf", "Infinity").replace("nan", "NaN")


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
    if isinstance(value, float) and value - value != 0:
        return json.dumps(_word(value))
    if isinstance(value, bytes | datetime | date | time | timedelta):
        return json.dumps(as_text(value))
    return json.dumps(value, ensure_ascii=False, default=str)


def _json_lines(path: Path) -> Iterator[Row]:
    decoder = json.JSONDecoder(
        object_pairs_hook=_members, parse_float=Number, parse_int=Number, parse_constant=_no_word
    )
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
            except _Repeated as repeated:
                hint = "leave one of them: which of them counts is up to each reader"
                raise UsageError(f"{place}: an object has the name {repeated.args[0]!r} twice", hint=hint) from None
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
                    f"{place}: \\u{ord(half[0]):04x} is half of a surrogate pair, not a character",
                    hint="give bytes that are not text as value_base64",
                )
            yield place, row


class _Repeated(Exception):
    """An object has this name twice."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _Repeated(next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1))
    return members


def _no_word(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON value; write null, or a string")


def _parquet(path: Path) -> Iterator[Row]:
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            schema = _microseconds(file.schema_arrow)
            check_names(path, schema)
            change = {field.name: made for field in schema if (made := _changed(field.type)) is not None}
            for batch in file.iter_batches(_BATCH_ROWS):
                for row in pa.Table.from_batches([batch]).cast(schema).to_pylist():
                    for name, made in change.items():
                        row[name] = made(row[name])
                    yield f"{path}, row {number}", row
                    number += 1
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read behind row {number}: {error}") from error


def _microseconds(schema: pa.Schema) -> pa.Schema:
    """Python knows no nanoseconds. A time that has some is refused by the cast, not cut."""
    return pa.schema([field.with_type(_in_microseconds(field.type)) for field in schema])


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind):
        return pa.duration("us")
    return pa.time64("us") if pa.types.is_time64(kind) else kind


def check_names(path: Path, fields: Iterable[pa.Field], within: str = "") -> None:
    """Refuse a name that occurs twice: of two columns with one name only the last would be read."""
    names: set[str] = set()
    for field in fields:
        if field.name in names:
            raise UsageError(
                f"{path}: column {within + field.name!r} occurs twice", hint="leave one of them, or rename one"
            )
        names.add(field.name)
        if pa.types.is_struct(field.type):
            check_names(path, [field.type.field(n) for n in range(field.type.num_fields)], f"{within}{field.name}.")


def _changed(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What is done to values of a type that Python has not as they are; None: nothing.

    A float of 32 bits has fewer digits than Python would show, and a map's entries are names and values.
    """
    if pa.types.is_float32(kind) or pa.types.is_float16(kind):
        as_float = np.float32 if pa.types.is_float32(kind) else np.float16
        return lambda value: value if value is None or value - value != 0 else Number(as_float(value))
    if pa.types.is_map(kind):
        inner = _changed(kind.item_type) or _same
        return lambda entries: None if entries is None else _named(entries, inner)
    if pa.types.is_struct(kind):
        members = {kind.field(n).name: _changed(kind.field(n).type) for n in range(kind.num_fields)}
        some = {name: made for name, made in members.items() if made is not None}
        return (
            (lambda row: None if row is None else row | {n: made(row[n]) for n, made in some.items()}) if some else None
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = _changed(kind.value_type)
        return (lambda some: None if some is None else [element(one) for one in some]) if element else None
    return None


def _same(value: Any) -> Any:
    return value


def _named(entries: list[tuple[Any, Any]], inner: Callable[[Any], Any]) -> dict[str, Any]:
    named = {str(as_text(key)): inner(value) for key, value in entries}
    if len(named) < len(entries):
        raise UsageError(f"a map has one key twice: {', '.join(str(key) for key, _ in entries)}"[:200])
    return named
