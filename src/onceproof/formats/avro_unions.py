"""Avro's unions: which of its types a value is written as, and what a default of it means."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time
from typing import Any

from onceproof.formats.avro_reading import logical_of

#: Kind of a type -> the Python types of its defaults in JSON.
IN_JSON: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    **dict.fromkeys(("int", "long"), (int,)),
    **dict.fromkeys(("float", "double"), (int, float)),
    **dict.fromkeys(("string", "bytes", "fixed", "enum"), (str,)),
    "array": (list,),
    **dict.fromkeys(("map", "record", "error"), (dict,)),
}
_NAMED = ("record", "error", "enum", "fixed")


def unions(schema: Any) -> Iterator[list[Any]]:
    """All unions in a schema. What it refers to by name is not followed."""
    if isinstance(schema, list):
        yield schema
        for branch in schema:
            yield from unions(branch)
    elif isinstance(schema, dict):
        for part in ("items", "values", "type"):
            yield from unions(schema.get(part))
        for member in schema.get("fields", ()):
            yield from unions(member["type"])


def members(schema: Any) -> Iterator[Any]:
    """All fields of the records in a schema. What it refers to by name is not followed."""
    for part in schema if isinstance(schema, list) else ():
        yield from members(part)
    if isinstance(schema, dict):
        for part in ("items", "values", "type"):
            yield from members(schema.get(part))
        for member in schema.get("fields", ()):
            yield member
            yield from members(member["type"])


def branch_name(branch: Any) -> str:
    """The name by which fastavro knows a type of a union."""
    if isinstance(branch, str):
        return branch
    return str(branch["name"] if branch["type"] in _NAMED else branch["type"])


def dates_first(branches: list[Any]) -> list[Any]:
    """The types of a union with `date` before the timestamps, which would take a day for its midnight."""
    first = next((n for n, one in enumerate(branches) if "timestamp" in str(logical_of(one))), len(branches))
    return [*branches[:first], *sorted(branches[first:], key=lambda one: logical_of(one) != "date")]


def in_its_branch(schema: Any, value: Any) -> Any:
    """The value of a default as fastavro takes it: in a union, times with the name of their type."""
    part = {datetime: "timestamp", date: "date", time: "time-"}.get(type(value))
    if not isinstance(schema, list) or part is None:
        return value
    branch = next(one for one in schema if part in str(logical_of(one)).removeprefix("local-"))
    return branch_name(branch), value
