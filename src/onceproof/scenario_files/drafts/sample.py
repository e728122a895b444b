"""A sample of a topic's records: its fields, and which of them name a record and which name what records are about."""

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

#: As many records as are looked at for proposals; all are fed.
_LOOKED_AT = 10_000
#: No proposal has more columns, and none is sought among more fields: beyond that a person sees more than we do.
_WIDEST = 3
_FIELDS_TRIED = 12

_NAMES_ONE = re.compile(r"(^|_)(id|uuid|guid|key|number|no|nr)$|num$|[a-z]I[dD]$")
#: What tells when or how much, and names nothing: unique in a sample by accident.
_MEASURES = re.compile(r"(time|date|_at|_ts|stamp|amount|price|total|value|lat|lon)$", re.IGNORECASE)


@dataclass(frozen=True)
class Sample:
    """What a file of records looks like. ``fields``: name -> SQL type in Postgres that would hold it, in the file's order."""

    file: Path
    rows: int
    fields: dict[str, str]
    identity: tuple[str, ...]
    """The fewest fields that are never null and differ between any two records looked at; empty if there are none."""
    key: str | None
    """The field that records of one thing share, if one is named so; under the name that it has in the file."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Fields whose names differ only by case, each with its name here and in the judge's tables."""
    records: bool = False
    """Whether the file holds records, with keys of their own, and not values alone."""


def read(path: Path, *, records: bool | None = None) -> Sample:
    """``records``: whether each line is a record with its value, in the form of `onceproof.data.file`, or the value itself;
    None where nobody has said so: then a file that could be either is refused.

    Raises `UsageError` for a file that is not there, is empty, or holds a line that is no JSON object.
    """
    values = {True: _values_of_records, False: foreign_files.rows, None: _values}[records]
    rows = [row for _, row in islice(values(path), _LOOKED_AT)]
    if not rows:
        raise UsageError(
            f"sample {str(path)!r} holds no record", hint="one JSON object a line, as the topic's values are"
        )
    count = sum(1 for _ in values(path)) if len(rows) == _LOOKED_AT else len(rows)
    # A field whose name differs from another's only by case goes by the name that it has in the judge's tables.
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
    """The rows, each an object that a record's value is."""
    if path.suffix == ".parquet":
        raise UsageError(
            f"sample {str(path)!r} is not a JSON lines file", hint="use a .jsonl file with one JSON object per line"
        )
    if may_hold_records(path):
        hint = "say which it is: --records, or --values if these are the fields of each value"
        raise UsageError(f"sample {str(path)!r} holds records with their keys, not values", hint=hint)
    return foreign_files.rows(path)


def _values_of_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The values of records that are JSON objects; of others there are no fields to propose anything from."""
    for place, row in foreign_files.rows(path):
        record_of(place, row, 0)
        value = row.get("value")
        yield place, value if isinstance(value, dict) else {}


def _type(values: Sequence[Any]) -> str:
    there = [value for value in values if value is not None]
    if there and all(isinstance(value, bool) for value in there):
        return "boolean"
    if there and all(isinstance(value, foreign_files.Number) for value in there):
        if all(str(value).lstrip("-").isdecimal() for value in there):
            return "bigint" if all(-(2**63) <= int(value) < 2**63 for value in there) else "numeric"
        return "numeric" if any(re.search(LONG_NUMBER, value) for value in there) else "double precision"
    return "jsonb" if any(isinstance(value, dict | list) for value in there) else "text"


def _identity(rows: Sequence[dict[str, Any]], plain: Sequence[str]) -> tuple[str, ...]:
    never_null = [name for name in plain if all(row.get(name) is not None for row in rows)]
    # Sorting is stable: among equals, the field that stands first in the records.
    likely = sorted(never_null, key=lambda name: (not _NAMES_ONE.search(name), bool(_MEASURES.search(name))))
    for width in range(1, _WIDEST + 1):
        for names in combinations(likely[:_FIELDS_TRIED], width):
            if len({tuple(str(row[name]) for name in names) for row in rows}) == len(rows):
                return names
    return ()


def _key(rows: Sequence[dict[str, Any]], plain: Sequence[str], identity: Sequence[str]) -> str | None:
    """A field that is named like an id, without being one of the record: several records share a value."""
    for name in plain:
        values = [str(row[name]) for row in rows if row.get(name) is not None]
        if _NAMES_ONE.search(name) and name not in identity[:1] and len(set(values)) < len(values):
            return name
    return None
