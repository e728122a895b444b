"""Reads records and rows from a user's own files, JSON lines or Parquet, one after the other, in constant memory.

A file holds *records* if its first row has ``value`` (or ``value_base64``): rows of ``key``, ``value``, ``partition``,
``offset``, ``timestamp_ms`` and ``visibility``, all optional except the value. A value that is not text means its JSON text.
Any other file holds plain *rows*: each row as a whole is the JSON object that a record's value would be.

Numbers keep the digits that the file has: nothing passes through a float.
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
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from onceproof.base.errors import UsageError
from onceproof.base.paths import is_file, is_folder
from onceproof.base.registry import suggest
from onceproof.values.documents import Number

Row = tuple[str, dict[str, Any]]
"""The position of a row, for messages, and its columns."""

FIELDS = ("key", "key_base64", "value", "value_base64", "partition", "offset", "timestamp_ms", "visibility")
VISIBILITY = ("committed", "aborted", "open")
_ENDINGS = (".jsonl", ".ndjson", ".parquet")
_BATCH_ROWS = 16_384
_LARGEST = {"partition": 2**31 - 1, "offset": 2**63 - 1, "timestamp_ms": 2**63 - 1}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


#: Half of a surrogate pair: JSON can escape one alone, but no encoding can write it.
_HALF = re.compile("[\ud800-\udfff]")


def rows(path: Path, *, ending: str | None = None) -> Iterator[Row]:
    """Every row of the file. ``ending`` overrides the file's own ending.

    Raises `UsageError`, with the line or row, if the file cannot be read.
    """
    ending = ending or path.suffix
    if ending not in _ENDINGS:
        raise UsageError(
            f"{path} has {f'an unknown ending: {path.suffix}' if path.suffix else 'no ending'}",
            hint="use .jsonl or .parquet",
        )
    if not is_file(path):
        near = sorted(p.name for p in path.parent.glob("*") if p.suffix in _ENDINGS) if is_folder(path.parent) else []
        hint = suggest(path.name, near) if near else None
        raise UsageError(f"file {str(path)!r} does not exist", hint=hint)
    return _parquet(path) if ending == ".parquet" else _json_lines(path)


def is_parquet(path: Path) -> bool:
    """Whether this is an existing file that is read as Parquet."""
    return path.suffix == ".parquet" and is_file(path)


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Every row of the file as a record: ``key`` and ``value`` as bytes or None, ``partition`` and ``offset`` always set.

    If the file gives no offsets, records are numbered in their order within each partition; if it gives no partition, it is 0.
    Raises `UsageError` as `rows` does, and for unknown fields.
    """
    yield from Numbered().records(rows(path))


class Numbered:
    """Gives the records of a file their offsets, and refuses offsets that do not rise."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        """Partition -> the least offset that its next record may have."""
        self._as_records: bool | None = None
        self._own: bool | None = None
        """Whether the records have offsets of their own; None before the first record."""

    def records(self, found: Iterable[Row]) -> Iterator[dict[str, Any]]:
        """Each row as a record. Raises `UsageError`."""
        for place, row in found:
            if self._as_records is None:
                self._as_records = "value" in row or "value_base64" in row
            yield self._numbered(
                place, record(place, row) if self._as_records else {"key": None, "value": as_json(row).encode()}
            )

    def _numbered(self, place: str, found: dict[str, Any]) -> dict[str, Any]:
        partition = found.setdefault("partition", 0)
        if self._own is None:
            self._own = "offset" in found
        if self._own != ("offset" in found):
            raise UsageError(
                f"{place}: some rows have an offset and others do not", hint="give an offset to all rows, or to none"
            )
        least = self._next.get(partition, 0)
        offset = found.setdefault("offset", least)
        if offset < least:
            hint = "sort the file by partition and offset; each record may be in it only once"
            raise UsageError(f"{place}: offset {offset} of partition {partition} comes after {least - 1}", hint=hint)
        self._next[partition] = offset + 1
        return found

    def of_columns(
        self, partitions: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64] | None
    ) -> npt.NDArray[np.int64] | None:
        """The offsets of many records; None, with nothing changed, if some of them would be refused."""
        if self._own is not None and self._own != (offsets is not None):
            return None
        order = np.argsort(partitions, kind="stable")
        sorted_ = partitions[order]
        begins = np.flatnonzero(np.r_[True, sorted_[1:] != sorted_[:-1]]) if len(sorted_) else np.array([], np.int64)
        given = np.empty(len(partitions), np.int64)
        following: dict[int, int] = {}
        for begin, end in zip(begins, [*begins[1:], len(sorted_)], strict=True):
            partition, which = int(sorted_[begin]), order[begin:end]
            least = self._next.get(partition, 0)
            own = np.arange(least, least + end - begin) if offsets is None else offsets[which]
            if own[0] < least or (np.diff(own) <= 0).any():
                return None
            given[which] = own
            following[partition] = int(own[-1]) + 1
        self._own = offsets is not None
        self._next |= following
        return given


def record(place: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row as a record: ``key`` and ``value`` as bytes or None, and the other fields that it has."""
    for name in row:
        if name not in FIELDS:
            raise UsageError(f"{place}: a record has no field {name!r}; {suggest(name, list(FIELDS))}")
    found: dict[str, Any] = {"key": _bytes(place, row, "key"), "value": _bytes(place, row, "value")}
    for name in ("partition", "offset", "timestamp_ms"):
        if (given := row.get(name)) is not None:
            found[name] = _count(place, name, given)
    visibility = row.get("visibility")
    if visibility is not None:
        if visibility not in VISIBILITY:
            raise UsageError(f"{place}: visibility {visibility!r} is not one of {', '.join(VISIBILITY)}")
        found["visibility"] = visibility
    return found


def _bytes(place: str, row: dict[str, Any], name: str) -> bytes | None:
    encoded = row.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise UsageError(f"{place}: {name}_base64 is not base64: {str(encoded)[:60]!r}") from None
    value = row.get(name)
    if value is None or isinstance(value, bytes):
        return value
    return (value if type(value) is str else as_json(value)).encode()


def _count(place: str, name: str, given: Any) -> int:
    if isinstance(given, datetime) and name == "timestamp_ms":
        return ((given if given.tzinfo else given.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
    digits = str(given)
    if isinstance(given, bool) or not digits.isdecimal():
        raise UsageError(f"{place}: {name} {given!r} is not a whole number from 0 up")
    most = _LARGEST[name]
    if len(digits) > len(str(most)) or int(digits) > most:
        shown = digits if len(digits) <= 30 else f"{digits[:30]}..."
        raise UsageError(f"{place}: {name} {shown} is too large: the largest one is {most}")
    return int(digits)


def as_text(value: Any) -> str | None:
    """A value as a Postgres client would print it: the text that is compared with a table's column."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, float) and value - value != 0:
        return _special_float(value)
    return as_json(value)


def _duration(value: timedelta) -> str:
    """Hours, minutes and seconds, in the format of an INTERVAL."""
    microseconds = value // timedelta(microseconds=1)
    seconds, rest = divmod(abs(microseconds), 1_000_000)
    sign = "-" if microseconds < 0 else ""
    return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:06}"


def _special_float(value: float) -> str:
    """NaN or an infinity as text: JSON has no numbers for these."""
    return str(value).replace("inf", "Infinity").replace("nan", "NaN")


def as_json(value: Any) -> str:
    """The JSON text of a value from `rows`; values that JSON cannot express become strings."""
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
        return json.dumps(_special_float(value))
    if isinstance(value, bytes | datetime | date | time | timedelta):
        return json.dumps(as_text(value))
    return json.dumps(value, ensure_ascii=False, default=str)


def _json_lines(path: Path) -> Iterator[Row]:
    decoder = json.JSONDecoder(
        object_pairs_hook=_members, parse_float=Number, parse_int=Number, parse_constant=_refuse_constant
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
                hint = "keep only one of them: readers disagree on which one counts"
                raise UsageError(f"{place}: an object has the name {repeated.args[0]!r} twice", hint=hint) from None
            except UnicodeDecodeError as error:
                raise UsageError(f"{place}: not UTF-8 text (byte {error.start} of the line)") from None
            except (ValueError, RecursionError) as error:
                shown = line.strip()[:60].decode(errors="replace")
                raise UsageError(
                    f"{place}: not JSON: {error}: {shown!r}", hint="each line must be one JSON object"
                ) from None
            if not isinstance(row, dict):
                raise UsageError(
                    f"{place}: {line.strip().decode()[:60]} is not a JSON object",
                    hint="each line must be one JSON object",
                )
            if b"\\u" in line and (half := _HALF.search(json.dumps(row, ensure_ascii=False))):
                raise UsageError(
                    f"{place}: \\u{ord(half[0]):04x} is half of a surrogate pair, not a character",
                    hint="give bytes that are not text as value_base64",
                )
            yield place, row


class _Repeated(Exception):
    """An object has a name twice: the exception's argument."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _Repeated(next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1))
    return members


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON value; write null, or a string")


def _parquet(path: Path) -> Iterator[Row]:
    for number, table in parquet_tables(path):
        yield from rows_of(path, number, table)


def parquet_tables(path: Path) -> Iterator[tuple[int, pa.Table]]:
    """The rows of a Parquet file in pieces, each with the number of its first row; times in microseconds. Raises `UsageError`."""
    number = 0
    try:
        with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            schema = _microseconds(file.schema_arrow)
            check_names(path, schema)
            # Group by group: asked for all groups, the reader keeps what it has read of each until the end.
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group]):
                    if batch.num_rows:
                        yield number, pa.Table.from_batches([batch]).cast(schema)
                    number += batch.num_rows
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read after row {number}: {error}") from error


def rows_of(path: Path, number: int, table: pa.Table) -> Iterator[Row]:
    """The rows of one piece of a Parquet file, numbered from ``number``. Raises `UsageError`."""
    converters = {field.name: convert for field in table.schema if (convert := _converter(field.type)) is not None}
    try:
        for row in table.to_pylist():
            for name, convert in converters.items():
                row[name] = convert(row[name])
            yield f"{path}, row {number}", row
            number += 1
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read after row {number}: {error}") from error
    except (ValueError, OverflowError) as error:  # Python has no such date
        hint = "dates and times must be in the years 1 to 9999"
        raise UsageError(f"{path} cannot be read after row {number}: {error}", hint=hint) from error


def _microseconds(schema: pa.Schema) -> pa.Schema:
    """The schema with times in microseconds: Python has no nanoseconds. The cast refuses a time that has some."""
    return pa.schema([field.with_type(_in_microseconds(field.type)) for field in schema])


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind):
        return pa.duration("us")
    return pa.time64("us") if pa.types.is_time64(kind) else kind


def check_names(path: Path, fields: Iterable[pa.Field], within: str = "") -> None:
    """Refuse a name that occurs twice: of two columns with the same name, only the last would be read."""
    names: set[str] = set()
    for field in fields:
        if field.name in names:
            raise UsageError(
                f"{path}: column {within + field.name!r} occurs twice", hint="remove or rename one of them"
            )
        names.add(field.name)
        if pa.types.is_struct(field.type):
            check_names(path, [field.type.field(n) for n in range(field.type.num_fields)], f"{within}{field.name}.")


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """The conversion for values of a type that PyArrow gives to Python in another form; None if none is needed.

    A 32-bit float has fewer digits than Python would print, and a map arrives as a list of entries.
    """
    if pa.types.is_float32(kind) or pa.types.is_float16(kind):
        as_float = np.float32 if pa.types.is_float32(kind) else np.float16
        return lambda value: value if value is None or value - value != 0 else Number(as_float(value))
    if pa.types.is_map(kind):
        inner = _converter(kind.item_type) or (lambda value: value)
        return lambda entries: None if entries is None else _as_dict(entries, inner)
    if pa.types.is_struct(kind):
        members = {kind.field(n).name: _converter(kind.field(n).type) for n in range(kind.num_fields)}
        some = {name: convert for name, convert in members.items() if convert is not None}
        return (
            (lambda row: None if row is None else row | {n: convert(row[n]) for n, convert in some.items()})
            if some
            else None
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = _converter(kind.value_type)
        return (lambda items: None if items is None else [element(item) for item in items]) if element else None
    return None


def _as_dict(entries: list[tuple[Any, Any]], inner: Callable[[Any], Any]) -> dict[str, Any]:
    members = {str(as_text(key)): inner(value) for key, value in entries}
    if len(members) < len(entries):
        raise UsageError(f"a map has the same key twice: {', '.join(str(key) for key, _ in entries)}"[:200])
    return members
