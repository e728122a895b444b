"""Avro's schema resolution where logical types are concerned: a value means what the schema says by which it is *read*.

fastavro would give it the meaning of the schema with which it was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Logical types that a value keeps only if both schemas give it.
KNOWN = (
    "decimal",
    "timestamp-millis",
    "timestamp-micros",
    "local-timestamp-millis",
    "local-timestamp-micros",
    "date",
    "time-millis",
    "time-micros",
    "uuid",
)
_OWN = ("logicalType", "precision", "scale")


def logical_of(schema: Any) -> str | None:
    return schema.get("logicalType") if isinstance(schema, dict) else None


def kind_of(schema: Any) -> str:
    return str(schema if isinstance(schema, str) else "union" if isinstance(schema, list) else schema["type"])


def disagreement(writer: Any, reader: Any) -> str | None:
    """Why implementations of Avro disagree about a value's meaning; None if they do not.

    If the schemas give different logical types, Java's implementation reads by the reader's and fastavro by the writer's.
    """
    one, two = logical_of(writer), logical_of(reader)
    if one not in KNOWN or two not in KNOWN:
        return None
    if one == two == "decimal" and writer.get("scale", 0) != reader.get("scale", 0):
        return f"written as decimal with scale {writer.get('scale', 0)} and read with scale {reader.get('scale', 0)}"
    return None if one == two else f"written as {one} and read as {two}"


def without_lost_types(
    schema: Any, reader: Any, named: Mapping[str, Any], named_of_reader: Mapping[str, Any], seen: set[str] | None = None
) -> Any:
    """``schema``, with which values were written, without the logical types that ``reader`` does not give them.

    A named type keeps those of the first place where it occurs. ``named``, ``named_of_reader``: name -> definition.
    """
    seen = set() if seen is None else seen

    def below(part: Any, of_reader: Any) -> Any:
        return without_lost_types(part, of_reader, named, named_of_reader, seen)

    if isinstance(schema, str):
        if schema in seen or schema not in named:
            return schema
        schema = named[schema]
    if isinstance(schema, list):
        return [below(branch, reader) for branch in schema]
    wanted = _counterpart(schema, reader, named_of_reader)
    made = {key: value for key, value in schema.items() if not key.startswith("__")}
    if wanted is not None and logical_of(schema) in KNOWN and logical_of(wanted) != logical_of(schema):
        made = {key: value for key, value in made.items() if key not in _OWN}
    if "name" in made:
        seen.add(made["name"])
    of = wanted if isinstance(wanted, dict) else {}
    for key in ("items", "values"):
        if key in made:
            made[key] = below(made[key], of.get(key))
    if "fields" in made:
        types = {
            name: field["type"] for field in of.get("fields", ()) for name in (field["name"], *field.get("aliases", ()))
        }
        made["fields"] = [{**field, "type": below(field["type"], types.get(field["name"]))} for field in made["fields"]]
    return made


def _counterpart(schema: Any, reader: Any, named: Mapping[str, Any]) -> Any:
    """The part of the reader's schema by which values of ``schema`` are read; None if they are not read, or by no such part."""
    reader = named.get(reader, reader) if isinstance(reader, str) else reader
    if not isinstance(reader, list):
        return reader
    branches = [named.get(one, one) if isinstance(one, str) else one for one in reader]
    alike = [one for one in branches if kind_of(one) == kind_of(schema)]
    same = [one for one in alike if logical_of(one) == logical_of(schema) and _name(one) in (None, _name(schema))]
    others = [one for one in branches if one != "null"]
    return next(iter([*same, *alike, *others]), None)


def _name(schema: Any) -> str | None:
    return schema.get("name") if isinstance(schema, dict) else None
