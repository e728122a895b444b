"""Reads a sample of a topic's records: its fields, those that identify a record, and the one that is the key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from pathlib import Path
from typing import Any

from onceproof.base.errors import UsageError
from onceproof.data.file import may_hold_records, record_of
from onceproof.values import documents, foreign_files
from onceproof.values.documents import LONG_NUMBER

#: Proposals are made from so many records; all are fed.
_LOOKED_AT = 10_000
#: A proposed identity has at most so many columns, chosen from the first so many fields. Beyond that a person judges better.
_WIDEST = 3
_FIELDS_TRIED = 12

_NAMES_ONE = re.compile(r"(^|_)(id|uuid|guid|key|number|no|nr)$|num$|[a-z]I[dD]$")
#: Names of times and amounts, which may be unique in a sample by accident but identify nothing.
_MEASURES = re.compile(r"(time|date|_at|_ts|stamp|amount|price|total|value|lat|lon)$", re.IGNORECASE)


@dataclass(frozen=True)
class Sample:
    """What a file of records looks like."""

    file: Path
    rows: int
    fields: dict[str, str]
    """Name -> a Postgres type that can hold its values, in the file's order."""
    identity: tuple[str, ...]
    """The fewest fields that are never null and differ between any two of the records; empty if there are none."""
    key: str | None
    """The field that is named like an id and that several records share, by its name in the file; None if there is none."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Fields whose names differ only by case: name in the file -> name in the judge's tables."""
    records: bool = False
    """Whether each line is a record with a key, and not only a value."""


def read(path: Path, *, records: bool | None = None) -> Sample:
    """Read a sample. ``records``: whether each line is a whole record, in the form of `onceproof.data.file`, or only a value.

    With None, a file that could be either is refused. Raises `UsageError` for a file that does not exist, is empty, or has a
    line that is not a JSON object.
    """
    values = {True: _values_of_records, False: foreign_files.rows, None: _values}[records]
    rows = [row for _, row in islice(values(path), _LOOKED_AT)]
    if not rows:
        raise UsageError(
            f"sample {str(path)!r} has no records", hint="write one JSON object per line, like the topic's values"
        )
    count = sum(1 for _ in values(path)) if len(rows) == _LOOKED_AT else len(rows)
    # If names differ only by case, the fields get the names that they have in the judge's tables.
    named = documents.columns(name for row in rows for name in row)
    rows = [{named[name]: value for name, value in row.items()} for row in rows]
    fields = {name: _type([row.get(name) for row in rows]) for name in dict.fromkeys(n for row in rows for n in row)}
    plain = [name for name, kind in fields.items() if kind != "jsonb"]
    identity = _identity(rows, plain)
    key = None if records else _key(rows, plain, identity)
    back = {column: name for name, column in named.items()}
    return Sample(
        path,
        count,
        fields,
        identity,
        None if key is None else back[key],
        records=bool(records),
        renamed=documents.renamed(named),
    )


def _values(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The place and the value of each record, from a file of values."""
    if path.suffix == ".parquet":
        raise UsageError(
            f"sample {str(path)!r} is not a JSON lines file", hint="use a .jsonl file with one JSON object per line"
        )
    if may_hold_records(path):
        hint = "use --records, or --values if these are fields of each value"
        raise UsageError(f"sample {str(path)!r} seems to hold whole records with keys, not only values", hint=hint)
    return foreign_files.rows(path)


def _values_of_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The place and the value of each record, from a file of records. A value that is not a JSON object has no fields."""
    for place, row in foreign_files.rows(path):
        record_of(place, row, 0)
        value = row.get("value")
        yield place, value if isinstance(value, dict) else {}


def _type(values: Sequence[Any]) -> str:
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, bool) for value in known):
        return "boolean"
    if known and all(isinstance(value, documents.Number) for value in known):
        if all(str(value).lstrip("-").isdecimal() for value in known):
            return "bigint" if all(-(2**63) <= int(value) < 2**63 for value in known) else "numeric"
        return "numeric" if any(re.search(LONG_NUMBER, value) for value in known) else "double precision"
    return "jsonb" if any(isinstance(value, dict | list) for value in known) else "text"


def _identity(rows: Sequence[dict[str, Any]], plain: Sequence[str]) -> tuple[str, ...]:
    never_null = [name for name in plain if all(row.get(name) is not None for row in rows)]
    # Sorting is stable: among equals, the field that comes first in the records wins.
    likely = sorted(never_null, key=lambda name: (not _NAMES_ONE.search(name), bool(_MEASURES.search(name))))
    for width in range(1, _WIDEST + 1):
        for names in combinations(likely[:_FIELDS_TRIED], width):
            if len({tuple(str(row[name]) for name in names) for row in rows}) == len(rows):
                return names
    return ()


def _key(rows: Sequence[dict[str, Any]], plain: Sequence[str], identity: Sequence[str]) -> str | None:
    """The first field that is named like an id but does not identify a record: several records share a value."""
    for name in plain:
        values = [str(row[name]) for row in rows if row.get(name) is not None]
        if _NAMES_ONE.search(name) and name not in identity[:1] and len(set(values)) < len(values):
            return name
    return None
