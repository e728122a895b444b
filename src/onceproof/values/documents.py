"""Reads JSON objects exactly, where DuckDB would lose information.

DuckDB reads a number with a point as a double (of which fifteen digits are certain), takes the first of two members with the
same name, and cannot have two columns whose names differ only by case. This module keeps every digit, and

- of members with the same name, the last counts, as in Spark's ``from_json``, Postgres' ``jsonb`` and most parsers;
- names that differ only by case become columns with a number appended, in the order of their code points, so capital letters
  first: ``T`` and ``t`` become ``T_1`` and ``t_2`` (`columns`).

Reading in Python is several times slower than DuckDB's own parsing, so it is done only for the records or outputs that need it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from duckdb.func import SPECIAL

#: The SQL function: (text, fields as JSON: column -> [name, kind]) -> JSON object, or NULL if the text is not a JSON object.
FUNCTION = "exact_fields"

#: The SQL function: text -> whether it is JSON.
IS_JSON = "is_json_text"

#: Kinds for `FUNCTION`: a member becomes its own value (``value``), the JSON text of that value, or the text that is compared.
VALUE, JSON, WHOLE, FRACTION, DECIMAL, BOOLEAN, TEXT, OTHER = (
    "value",
    "json",
    "whole",
    "fraction",
    "decimal",
    "boolean",
    "text",
    "other",
)

#: A regular expression that matches every text with a number that a double may not hold: sixteen or more digits with a point
#: among them or an exponent after them, or an exponent of three digits.
LONG_FRACTION = "|".join(
    ["[0-9]{16}[.eE]", *(f"[0-9]{{{n}}}[.][0-9]{{{16 - n}}}" for n in range(1, 16)), "[0-9][eE][+-]?[0-9]{3}"]
)
#: Matches whatever `LONG_FRACTION` matches, and more, in half the time.
MAYBE_LONG = "[0-9.]{16}|[0-9][eE][+-]?[0-9]{3}"
#: Also matches whole numbers that a column of fractions, or of 64-bit integers, may not hold.
LONG_NUMBER = f"[0-9]{{16}}|{LONG_FRACTION}"

_WORDS = {"nan", "inf", "infinity", "+inf", "+infinity", "-inf", "-infinity"}


class Number(str):
    """The digits of a JSON number, kept as text so that it does not become a float."""


_DECODER = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=str)


def parse(text: str) -> Any:
    """The value of a JSON text. Raises ValueError or RecursionError for a text that is not JSON."""
    return _DECODER.decode(text.strip())


def written(value: Any) -> str:
    """The JSON text of a parsed value, with its original digits."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_string(name)}:{written(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return str(value) if isinstance(value, Number) else _string(value)


def _string(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def columns(names: Iterable[str]) -> dict[str, str]:
    """Member -> its column, for members that occur together in a topic or output."""
    names = sorted(set(names))
    folded = Counter(name.lower() for name in names)
    taken = {name.lower() for name in names if folded[name.lower()] == 1}
    found: dict[str, str] = {}
    nth: Counter[str] = Counter()
    for name in names:
        nth[name.lower()] += 1
        column = name
        if folded[name.lower()] > 1:
            column = f"{name}_{nth[name.lower()]}"
            while column.lower() in taken:
                column += "_"
            taken.add(column.lower())
        found[name] = column
    return found


def renamed(names: Iterable[str]) -> dict[str, str]:
    """The entries of `columns` whose column is not named like the member."""
    return {name: column for name, column in columns(names).items() if name != column}


def with_absent(names: Iterable[str], wanted: Iterable[str]) -> set[str]:
    """``names``, and members whose columns are wanted although no value has them: nulls are often left out of JSON."""
    names, wanted = set(names), set(wanted)
    absent = {spelling for column in wanted for spelling in spellings(column)[1:]} - names
    found = columns(names | absent)
    absent = {name for name in absent if found[name] in wanted}
    found = columns(names | absent)
    return names | absent if {found[name] for name in absent} <= wanted else names


def is_json(text: str | None) -> bool:
    """Whether a text is JSON (RFC 8259), with NaN and the infinities as DuckDB and Spark read them."""
    try:
        parse(text or "")
    except (ValueError, RecursionError):
        return False
    return True


def loose(text: str) -> str:
    """SQL for whether a text is not valid JSON although DuckDB reads it: a comma follows the last member or element."""
    return f"(regexp_matches({text}, ',\\s*[]}}]') AND NOT {IS_JSON}({text}))"


def exact_fields(text: str | None, fields: str) -> str | None:
    """A JSON object with these columns of the JSON object ``text``, without members that are null or missing."""
    if text is None:
        return None
    try:
        document = parse(text)
        if not isinstance(document, dict):
            return None
        made = {
            column: _as(kind, document[name])
            for column, (name, kind) in _fields(fields).items()
            if document.get(name) is not None
        }
        result = written(made)
        result.encode()  # half of a surrogate pair is valid JSON, but not valid text
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return result


def spellings(column: str) -> list[str]:
    """The members that may have become this column: the one of this name, and one (without number) that `columns` renamed."""
    plain = re.sub(r"_[0-9]+_*$", "", column)
    return [column, plain] if plain not in ("", column) else [column]


@lru_cache(maxsize=256)
def _fields(fields: str) -> dict[str, tuple[str, str]]:
    return {column: (name, kind) for column, (name, kind) in json.loads(fields).items()}


def _as(kind: str, value: Any) -> Any:
    if kind == VALUE:
        return _without_exponents(value)
    if kind == JSON:
        return written(value)
    if isinstance(value, dict | list):
        return f"{written(value)} (not text)" if kind == TEXT else written(value)
    if isinstance(value, Number):
        return f"{value} (a number)" if kind == TEXT else str(value)
    if isinstance(value, bool):
        word = "true" if value else "false"
        return f"{word} (true or false, not text)" if kind == TEXT else word
    text = str(value)
    if kind in (WHOLE, BOOLEAN) or (kind == FRACTION and text.lower() not in _WORDS):
        return _string(text)  # keep the quotes: "1" is not the number 1
    return text


def _without_exponents(value: Any) -> Any:
    """The value with its numbers written without exponents: DuckDB would read those as doubles."""
    if isinstance(value, Number) and "e" in value.lower() and abs(Decimal(value).adjusted()) <= _MOST_DIGITS:
        return Number(f"{Decimal(value):f}")
    if isinstance(value, dict):
        return {name: _without_exponents(inner) for name, inner in value.items()}
    return [_without_exponents(inner) for inner in value] if isinstance(value, list) else value


@dataclass
class Digits:
    """The digits that the numbers at one path need."""

    whole: int = 1
    """The most digits before the point."""
    scale: int = 0
    """The most digits after the point."""
    least: int = 0
    most: int = 0
    exact_as_double: bool = True
    with_exponent: bool = False
    whole_numbers: bool = True
    """Whether all are written without a point and without an exponent."""
    countable: bool = True
    """Whether all numbers fit into decimals: none is too large or too small."""

    def note(self, number: str) -> None:
        try:
            value = Decimal(number)
        except ArithmeticError:
            self.countable = self.exact_as_double = False
            return
        self.with_exponent = self.with_exponent or "e" in number.lower()
        self.whole_numbers = self.whole_numbers and not {".", "e", "E"} & set(number)
        _, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int), "JSON has neither NaN nor an infinity"
        spelled = "".join(map(str, digits)).lstrip("0")
        short = spelled.rstrip("0")
        exponent = exponent + len(spelled) - len(short) if short else 0
        scale, whole = max(-exponent, 0), max(len(short) + exponent, 0)
        self.scale, self.whole = max(self.scale, scale), max(self.whole, whole)
        if whole > _MOST_DIGITS or scale > _MOST_DIGITS:
            self.countable = False
        elif not scale:
            self.least, self.most = min(self.least, int(value)), max(self.most, int(value))
        if self.exact_as_double:
            self.exact_as_double = _is_double(number, value, whole_number=not scale)

    def type(self, *, whole_numbers: bool) -> str:
        """The DuckDB type that holds all the numbers exactly: ``JSON`` (as text) if no numeric type does."""
        if not self.countable:
            return "JSON"
        if whole_numbers or not self.scale:
            if self.least >= -(2**63) and self.most < 2**63:
                return "BIGINT"
            return "HUGEINT" if self.least > -(2**127) and self.most < 2**127 else "JSON"
        return f"DECIMAL({self.whole + self.scale},{self.scale})" if self.whole + self.scale <= 38 else "JSON"


_MOST_DIGITS = 60


def _is_double(number: str, value: Decimal, *, whole_number: bool) -> bool:
    """Whether a double holds the number exactly. One with an exponent was a double already: it must only read back equal."""
    double = float(number)
    if double - double != 0:
        return False
    if whole_number and "e" not in number.lower():
        return Decimal(double) == value
    return Decimal(repr(double)) == value


Path = tuple[str | None, ...]
"""The names of nested members; None is the step from a list to its elements."""


class NumbersByPath:
    """Collects the numbers of many JSON objects by path, and whether any object has a name twice."""

    def __init__(self) -> None:
        self.at: dict[Path, Digits] = {}
        self.repeated = False
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._members, parse_float=Number, parse_int=Number, parse_constant=str
        )

    def read(self, text: str) -> None:
        with suppress(ValueError, RecursionError):
            document = self._decoder.decode(text.strip())
            if isinstance(document, dict):
                self._note((), document)

    def below(self, path: Path) -> list[Digits]:
        return [digits for at, digits in self.at.items() if at[: len(path)] == path]

    def _members(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        self.repeated = self.repeated or len(members) < len(pairs)
        return members

    def _note(self, path: Path, value: Any) -> None:
        if isinstance(value, Number):
            self.at.setdefault(path, Digits()).note(value)
        elif isinstance(value, dict):
            for name, inner in value.items():
                self._note((*path, name), inner)
        elif isinstance(value, list):
            for inner in value:
                self._note((*path, None), inner)


def fields_of(named: Mapping[str, tuple[str, str]]) -> str:
    """The second argument of `FUNCTION`: column -> (name, kind)."""
    return json.dumps(named)


#: Name of each SQL function -> what makes it.
FUNCTIONS = {
    IS_JSON: lambda db: db.create_function(IS_JSON, is_json, ["VARCHAR"], "BOOLEAN", null_handling=SPECIAL),
    FUNCTION: lambda db: db.create_function(
        FUNCTION, exact_fields, ["VARCHAR", "VARCHAR"], "VARCHAR", null_handling=SPECIAL
    ),
}
