"""Records from a file of yours, JSON lines or Parquet: what a job is fed with that knows its own data only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, model_validator

from onceproof.data import Record, datasets
from onceproof.errors import UsageError
from onceproof.history import foreign_files
from onceproof.paths import expanded, is_file

_EPOCH_MS = 1_704_067_200_000  # 2024-01-01T00:00:00Z: event times must not depend on when the run takes place


class FileOptions(BaseModel):
    """What ``options:`` of an input with this data set may say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str = Field(description="the file, .jsonl or .parquet; {here} is the folder of the scenario")
    key: str | None = Field(
        None, description="field whose value is the record's key (default: the file's own keys, or none)"
    )

    @model_validator(mode="after")
    def _is_readable(self) -> FileOptions:
        try:
            _count(*self._version())
        except UsageError as problem:
            raise ValueError(problem.message) from problem
        return self

    def _version(self) -> tuple[Path, str | None, tuple[int, int]]:
        path = expanded(self.file)
        found = path.stat() if is_file(path) else None
        return path, self.key, (found.st_mtime_ns, found.st_size) if found else (0, 0)


@datasets.register("file")
class FileRecords:
    """The file's records in its order, as `onceproof.history.foreign_files` reads them.

    Each row is, as a whole, a record's value; unless the first one says that the rows are records: it has a ``value`` and
    nothing but what records have (``key``, ``timestamp_ms``, ...), and ``options.key`` is not given.

    Where the file gives no ``timestamp_ms``, a record is 1 ms later than the one before. Partitions and offsets that the
    file may give are not kept: Kafka gives its own.
    """

    about: ClassVar[str] = "a file of yours: JSON lines or Parquet, with the field that is the key"
    Options: ClassVar[type[BaseModel]] = FileOptions

    def __init__(self, options: FileOptions, *, seed: int) -> None:
        """Nothing here is random: ``seed`` is taken because every data set is."""
        self._options = options

    def rows(self) -> int:
        return _count(*self._options._version())

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Records [start, stop) in the file's order."""
        return islice(_read(expanded(self._options.file), self._options.key), start, stop)

    @classmethod
    def tables(cls) -> Mapping[str, str]:
        return {}

    @classmethod
    def table(cls, name: str) -> pa.Table:
        raise KeyError(f"file has no static table {name!r}")


@lru_cache(maxsize=16)
def _count(path: Path, key: str | None, _version: tuple[int, int]) -> int:
    """How many records the file holds, each of them looked at. Raises `UsageError` for one that cannot be sent."""
    found = sum(1 for _ in _read(path, key))
    if not found:
        raise UsageError(f"{path} holds no record")
    return found


def holds_records(path: Path) -> bool:
    """Whether the rows are records, with keys and values, and not the values themselves (which may have a field ``value``)."""
    _, first = next(foreign_files.rows(path), ("", {}))
    return bool(first.keys() & {"value", "value_base64"}) and first.keys() <= set(foreign_files.FIELDS)


def _read(path: Path, key: str | None) -> Iterator[Record]:
    if key is None and holds_records(path):
        for number, record in enumerate(foreign_files.records(path)):
            if record["value"] is None:
                raise UsageError(f"record {number + 1} of {path} has no value")
            yield Record(record["key"], record["value"], record.get("timestamp_ms", _EPOCH_MS + number))
        return
    for number, (place, row) in enumerate(foreign_files.rows(path)):
        if key is not None and key not in row:
            raise UsageError(f"{place}: there is no field {key!r}, which options.key names")
        yield Record(_as_key(row.get(key) if key else None), foreign_files.as_json(row).encode(), _EPOCH_MS + number)


def _as_key(value: Any) -> bytes | None:
    text = foreign_files.as_text(value)
    return None if text is None else text.encode()
