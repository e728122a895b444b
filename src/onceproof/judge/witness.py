"""Words for findings: where things stand, and what they are. Shared by the checkers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceproof.judge.case import Case

Row = dict[str, Any]

#: How many positions one witness names.
_PLACES = 4


def cause_of(row: Row) -> str | None:
    """``topic/partition@offset``, or None where the oracle names no cause."""
    return None if row["offset"] is None else f"{row['topic']}/{row['partition']}@{row['offset']}"


def input_of(row: Row) -> str:
    cause = cause_of(row)
    return "its input" if cause is None else f"input {cause}"


def identity_of(row: Row) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(row["id"])
    return document


def times(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def places(case: Case, output: str, ids: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """Identity -> where its effects stand, in order; the first few of each."""
    query = """SELECT id, place FROM judge.effects WHERE output = $output AND list_contains($ids, id)
               QUALIFY row_number() OVER (PARTITION BY id ORDER BY pos, lane) <= $places ORDER BY id, pos, lane"""
    rows = case.rows(query, {"output": output, "ids": list(ids), "places": _PLACES})
    return {id_: tuple(row["place"] for row in group) for id_, group in groupby(rows, key=lambda row: row["id"])}


def by(rows: list[Row], *columns: str) -> Iterator[tuple[tuple[Any, ...], list[Row]]]:
    """Rows that are already in the order of ``columns``, in groups of equal values."""
    for values, group in groupby(rows, key=lambda row: tuple(row[column] for column in columns)):
        yield values, list(group)


def sums(rows: Iterable[Row], column: str) -> dict[str, int]:
    """Value of ``column`` -> sum of ``total``, in the rows' order; rows without a value are left out."""
    result: dict[str, int] = {}
    for row in rows:
        if row[column] is not None:
            result[row[column]] = result.get(row[column], 0) + int(row["total"])
    return result
