"""Records from your own file, JSON lines or Parquet, for a job that works only with its own data."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, model_validator

from onceproof.base.errors import UsageError
from onceproof.base.paths import expanded, is_file
from onceproof.data import EPOCH_MS, DatasetOptions, Record, WithoutTables, datasets
from onceproof.scenario.kinds import complaint
from onceproof.values import documents, foreign_files

#: The fields of a row in a file of records.
_RECORD = ("key", "key_base64", "headers", "timestamp", "timestamp_ms", "value", "value_base64")


class FileOptions(DatasetOptions):
    """The ``options:`` of an input with this data set."""

    file: str = Field(description="the file, .jsonl or .parquet; {here} is the folder of the scenario")
    key: str | None = Field(
        None, description="field whose value is the record's key (default: the file's own keys, or none)"
    )
    form: Literal["values", "records"] | None = Field(
        None,
        description="values: each row is a record's value; records: each row is a record with key, headers, timestamp and value "
        "(default: records if the first row has a value and only fields of records)",
    )

    @model_validator(mode="after")
    def _is_readable(self) -> FileOptions:
        if self.form == "records" and self.key is not None:
            raise ValueError("with form: records the key is in each record; key is for form: values")
        try:
            _count(*self._version())
        except UsageError as problem:
            raise complaint(problem.message, problem.hint) from problem
        return self

    def _version(self) -> tuple[Path, str | None, str | None, tuple[int, int]]:
        path = expanded(self.file)
        found = path.stat() if is_file(path) else None
        return path, self.key, self.form, (found.st_mtime_ns, found.st_size) if found else (0, 0)


@datasets.register("file")
class FileRecords(WithoutTables):
    """The file's records in their order, as read by `onceproof.values.foreign_files`.

    With ``form: records`` each row is a record::

        {"key": "k1", "headers": {"trace": "a1"}, "timestamp": "2024-05-01T12:00:00Z", "value": {"id": 1}}

    All fields but the value may be left out. A key or value that is not a string is sent as its JSON text;
    ``key_base64`` and ``value_base64`` hold bytes. Headers are strings or null, or a list of ``[name, text]`` if a name
    occurs twice. The timestamp is ISO 8601 or milliseconds since 1970 (also as ``timestamp_ms``).

    With ``form: values`` each whole row is the value of a record, whatever its fields.

    Without a form, each whole row is a value, unless the first row shows that the rows are records: it has a ``value`` and
    only fields of records (``key``, ``timestamp_ms``, ...), and ``options.key`` is not given.

    Without a timestamp, a record is 1 ms later than the one before. Partitions and offsets in the file are ignored, because
    Kafka assigns its own.
    """

    about: ClassVar[str] = "your own file: JSON lines or Parquet, with a field for the key"
    Options: ClassVar[type[BaseModel]] = FileOptions
    _options: FileOptions

    def rows(self) -> int:
        return _count(*self._options._version())

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Records [start, stop) in the file's order."""
        return islice(_read(expanded(self._options.file), self._options.key, self._options.form), start, stop)


@lru_cache(maxsize=16)
def _count(path: Path, key: str | None, form: str | None, _version: tuple[int, int]) -> int:
    """The number of records in the file. Reads all of them, and raises `UsageError` for one that cannot be sent."""
    found = sum(1 for _ in _read(path, key, form))
    if not found:
        raise UsageError(f"{path} holds no records")
    return found


def holds_records(path: Path) -> bool:
    """Whether the rows are records with keys and values, and not values (which may have a field ``value``)."""
    _, first = next(foreign_files.rows(path), ("", {}))
    return bool(first.keys() & {"value", "value_base64"}) and first.keys() <= set(foreign_files.FIELDS)


def may_hold_records(path: Path) -> bool:
    """Whether the rows could be records, so that the user should state it by ``form``."""
    _, first = next(foreign_files.rows(path), ("", {}))
    return holds_records(path) or ("value" in first and "headers" in first and first.keys() <= set(_RECORD))


def record_of(place: str, row: dict[str, Any], number: int) -> Record:
    """A row of a file with ``form: records``. Raises `UsageError` for unknown fields and invalid values."""
    plain = {name: value for name, value in row.items() if name not in ("headers", "timestamp")}
    try:
        record = foreign_files.record(place, plain)
    except UsageError as problem:
        raise UsageError(problem.message, hint=f"a record has {', '.join(_RECORD)}") from None
    if record["value"] is None:
        raise UsageError(f"{place}: the record has no value", hint='add {"value": ...}')
    at = record.get("timestamp_ms", EPOCH_MS + number)
    if (given := row.get("timestamp")) is not None:
        at = _timestamp_ms(place, given)
    return Record(record["key"], record["value"], at, tuple(_headers(place, row.get("headers"))))


def _timestamp_ms(place: str, given: Any) -> int:
    try:
        if isinstance(given, bool):
            raise TypeError(given)
        if isinstance(given, documents.Number) or not isinstance(given, str | datetime):
            return max(0, int(given))
        when = given if isinstance(given, datetime) else datetime.fromisoformat(given)
        return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, TypeError, OverflowError):
        message = f"{place}: timestamp {str(given)[:60]!r} is neither ISO 8601 nor milliseconds since 1970"
        raise UsageError(message, hint='for example "2024-05-01T12:00:00Z"') from None


def _headers(place: str, given: Any) -> Iterator[tuple[str, bytes | None]]:
    pairs = [] if given is None else list(given.items()) if isinstance(given, dict) else given
    for pair in pairs if isinstance(pairs, list) else [pairs]:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            message = f"{place}: headers must be {{name: text}} or a list of [name, text], not {str(given)[:60]}"
            raise UsageError(message)
        text = foreign_files.as_text(pair[1])
        yield pair[0], None if text is None else text.encode()


def _read(path: Path, key: str | None, form: str | None = None) -> Iterator[Record]:
    if form == "records":
        for number, (place, row) in enumerate(foreign_files.rows(path)):
            yield record_of(place, row, number)
        return
    if form is None and key is None and holds_records(path):
        for number, record in enumerate(foreign_files.records(path)):
            if record["value"] is None:
                raise UsageError(f"record {number + 1} of {path} has no value")
            yield Record(record["key"], record["value"], record.get("timestamp_ms", EPOCH_MS + number))
        return
    for number, (place, row) in enumerate(foreign_files.rows(path)):
        if key is not None and key not in row:
            raise UsageError(f"{place}: the row has no field {key!r}, which options.key names")
        yield Record(_as_key(row.get(key) if key else None), foreign_files.as_json(row).encode(), EPOCH_MS + number)


def _as_key(value: Any) -> bytes | None:
    text = foreign_files.as_text(value)
    return None if text is None else text.encode()
