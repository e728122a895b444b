"""The one shape that all JSON objects of a topic usually have: the same members, in the same order, with values of the same kinds.

A regular expression describes the shape, so one look at each text shows what three functions of JSON would: which members there
are, of which types, none of them twice, none nested, and no number with more digits than a double or 64 bits can hold. It is
derived from some of the texts, and proves nothing until all of them match (`Shape.pattern`). A text that matches is valid JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

STRING, WHOLE, FRACTION, BOOLEAN = "string", "whole", "fraction", "boolean"

# At most 15 digits, and an exponent of at most two: what matches is exact as a double, and short of 64 bits.
_WHOLE = "(?:0|-?[1-9][0-9]{0,14})"  # not -0, which DuckDB reads as a double
_VALUES = {
    STRING: r'"[^"\\\x00-\x1f]*"',
    WHOLE: _WHOLE,
    FRACTION: r"-?(?:0|[1-9][0-9]{0,7})(?:[.][0-9]{1,7})?(?:[eE][+-]?[0-9]{1,2})?",
    BOOLEAN: "true|false",
}


@dataclass(frozen=True)
class Shape:
    """Members in their order, each with the kind of its value. A value may also be null."""

    kinds: dict[str, str]

    @property
    def pattern(self) -> str:
        """A regular expression (RE2) that matches a whole text of this shape."""
        members = (
            f"{re.escape(json.dumps(name, ensure_ascii=False))}: ?(?:{_VALUES[kind]}|null)"
            for name, kind in self.kinds.items()
        )
        return r"\{" + ", ?".join(members) + r"\}"


def shape_of(texts: Iterable[str | None]) -> Shape | None:
    """The shape of these texts; None if they have none in common, or if a member is nested, or null in all of them."""
    kinds: dict[str, str | None] | None = None
    for text in texts:
        found = _kinds(text)
        if found is None or (kinds is not None and list(found) != list(kinds)):
            return None
        kinds = found if kinds is None else {name: _merged(kinds[name], kind) for name, kind in found.items()}
    known = {name: kind for name, kind in (kinds or {}).items() if kind in _VALUES}
    return Shape(known) if kinds and len(known) == len(kinds) else None


def _kinds(text: str | None) -> dict[str, str | None] | None:
    try:
        pairs = json.loads(text or "", object_pairs_hook=list)
    except (ValueError, RecursionError):
        return None
    if not (isinstance(pairs, list) and pairs and all(isinstance(pair, tuple) for pair in pairs)):
        return None
    names = [name for name, _ in pairs]
    plain = all('"' not in name and "\\" not in name and name.isprintable() for name in names)
    return {name: _kind(value) for name, value in pairs} if plain and len(set(names)) == len(names) else None


def _kind(value: Any) -> str | None:
    """The kind of a value; None for null, and ``nested`` for a nested value."""
    if value is None:
        return None
    of = {str: STRING, int: WHOLE, float: FRACTION, bool: BOOLEAN}
    return of.get(type(value), "nested")


def _merged(one: str | None, other: str | None) -> str | None:
    if one is None or other is None or one == other:
        return one or other
    return FRACTION if {one, other} == {WHOLE, FRACTION} else "mixed"
