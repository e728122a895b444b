"""Histories with values of every kind, and their expected findings by plain Python, without SQL or code of the judge.

A pipeline copies ``id`` and ``v`` of each input record to every output. The sent values, and what an output holds instead,
are JSON texts.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st


class Digits(str):
    """The digits of a number in JSON."""


def read(text: str) -> Any:
    return json.loads(text, parse_int=Digits, parse_float=Digits)


# Numbers close to each other, and to the limits of doubles, 64 bits, 128 bits and decimals of 38 digits.
_EDGES = [2**53, 2**63, 2**64, 2**127, 10**20, 10**38, 10**45]
_WHOLE = st.builds(
    lambda edge, near, sign: str(sign * (edge + near)),
    st.sampled_from([0, 7, *_EDGES]),
    st.integers(-2, 2),
    st.sampled_from([1, 1, 1, -1]),
)
_FRACTIONS = st.builds(
    lambda whole, fraction: f"{whole}.{fraction}",
    st.sampled_from(["0", "1", "-3", "12345", "12345678901234567", "9007199254740993", "1" * 30]),
    st.sampled_from(["5", "25", "50", "89", "91", "10", "1234567890123456", "12345678901234567", "0" * 17 + "1"]),
)
_EXPONENTS = st.sampled_from(["1e3", "1.5E-7", "1e400", "2e400", "1.7976931348623157E308", "123456789012345678e2"])
_SMALL = st.sampled_from(["0", "1", "5", "42", "1000"])
_TEXTS = st.sampled_from(['"x"', '"5"', '"1.5"', '"true"', '"1_000"', '"9007199254740993"', '""', '"é\\""'])
_OTHERS = st.sampled_from(
    ["true", "false", "[1.5]", "[12345678901234567.89]", '{"a":9007199254740993}', '{"a":"x","b":[0.1]}']
)

#: The values that one field may hold: of one kind, or of several.
COLUMNS = [_SMALL, _WHOLE, _FRACTIONS, _TEXTS, _EXPONENTS, _OTHERS]
_COLUMNS = st.one_of(
    st.sampled_from(
        [_SMALL, _WHOLE, _TEXTS, _SMALL | _FRACTIONS, _WHOLE | _FRACTIONS, _WHOLE | _EXPONENTS | _FRACTIONS]
    ),
    st.lists(st.sampled_from(COLUMNS), min_size=2, max_size=3).map(st.one_of),
)


@dataclass
class Values:
    """One history. ``sent``: the texts of ``v``, one per record; ``batches``: the number of records in each, possibly 0."""

    sent: list[str]
    batches: list[int]
    outputs: dict[str, bool]
    """Name -> whether it is a table."""
    written: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    """Output -> id and text of each effect."""

    def store(self, run: Any) -> None:
        run.scenario["outputs"] = {
            name: {"table" if table else "topic": name, "identity": ["id"]} for name, table in self.outputs.items()
        }
        query = 'SELECT id, v, _partition, _offset, _key FROM "in"'
        run.scenario["oracle"] = {"kind": "sql", "queries": dict.fromkeys(self.outputs, query)}
        for number, text in enumerate(self.sent):
            run.send("k", f'{{"id":{number},"v":{text}}}'.encode())
        start = 0
        for number, size in enumerate(self.batches):
            run.batch(number, {0: (start, start + size)})
            start += size
        run.progress({0: start})
        for name, effects in self.written.items():
            for number, text in effects:
                if self.outputs[name]:
                    run.insert(name, {"id": number, "v": self.in_table(text)})
                else:
                    run.record(name, f'{{"id":{number},"v":{text}}}')

    def in_table(self, text: str) -> str | None:
        """The value as Postgres prints it: a string without quotes, unless the column has type JSON."""
        value = read(text)
        if value is None:
            return None
        return str(value) if isinstance(value, str) and not self.mixed else text

    @property
    def kinds(self) -> set[type]:
        return {type(value) for value in map(read, self.sent) if value is not None}

    @property
    def mixed(self) -> bool:
        kinds = self.kinds
        return len(kinds) > 1 or bool(kinds & {list, dict}) or self.number_type == "json"

    @property
    def number_type(self) -> str | None:
        """How the numbers of a field are compared: whole, double, exact (also as strings) or json."""
        if self.kinds != {Digits}:
            return None
        texts = [value for value in map(read, self.sent) if value is not None]
        numbers = [Decimal(text) for text in texts]  # exact; abs() would round them to the context's 28 digits
        if all(text.lstrip("-").isdigit() for text in texts):
            if all(-(2**63) <= number < 2**63 for number in numbers):
                return "whole"
            if all(-(2**64) < number < 2**64 for number in numbers) or not all(map(_is_exact_double, texts)):
                return "exact" if all(number.copy_abs() < 2**127 for number in numbers) else "json"
            return "double"
        if all(map(_is_exact_double, texts)):
            return "double"
        places = max(max(0, -_exponent(number)) for number in numbers)
        if any(number.adjusted() >= 60 for number in numbers) or places > 60:
            return "json"
        digits = max(len(str(abs(int(number)))) if abs(number) >= 1 else 0 for number in numbers)
        if not places:
            return "exact" if all(number.copy_abs() < 2**127 for number in numbers) else "json"
        return "exact" if places + digits <= 38 else "json"

    def same(self, sent: str, written: str, *, table: bool) -> bool:
        one, other = read(sent), read(written)
        if one is None or other is None:
            return one is None and other is None
        kind = self.number_type
        if kind is not None and kind != "json" and isinstance(other, str):
            number = isinstance(other, Digits) or ((table or kind == "exact") and _is_number(other))
            if not number:
                return False
            return float(one) == float(other) if kind == "double" else Decimal(one) == Decimal(other)
        if self.kinds == {str} and table:
            return bool(isinstance(other, str) and str(one) == str(other))
        if self.kinds == {bool} and table:
            return json.dumps(one) == (other if isinstance(other, str) else json.dumps(other))
        return _alike(one, other)

    def found(self) -> Counter[tuple[str, str, int]]:
        """(anomaly, output, id) -> how many."""
        found: Counter[tuple[str, str, int]] = Counter()
        for name, table in self.outputs.items():
            for number, sent in enumerate(self.sent):
                there = [text for at, text in self.written[name] if at == number]
                right = sum(self.same(sent, text, table=table) for text in there)
                wrong = len(there) - right
                found["wrong-value", name, number] += wrong
                found["duplicate", name, number] += max(right - 1, 0)
                found["lost-write", name, number] += not there
        return +found


def _exponent(number: Decimal) -> int:
    exponent = number.normalize().as_tuple().exponent if number else 0
    digits = str(number).lower().partition("e")[0].replace(".", "").replace("-", "").lstrip("0")
    if len(digits) > 28:  # normalize() keeps no more digits
        exponent = number.as_tuple().exponent + len(digits) - len(digits.rstrip("0"))
    return int(exponent)


def _is_exact_double(text: str) -> bool:
    double = float(text)
    if double in (float("inf"), float("-inf")):
        return False
    if "e" not in text.lower() and Decimal(text) == Decimal(text).to_integral_value():
        return Decimal(double) == Decimal(text)
    return Decimal(repr(double)) == Decimal(text)


def _is_number(text: str) -> bool:
    try:
        Decimal(text)
    except ArithmeticError:
        return False
    return "_" not in text


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Digits) and isinstance(other, Digits):
        return Decimal(one) == Decimal(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(one[name], other[name]) for name in one)
    return bool(one == other)


@st.composite
def values(draw: st.DrawFn) -> Values:
    column = draw(_COLUMNS)
    sent = draw(st.lists(column | st.just("null") if draw(st.booleans()) else column, min_size=1, max_size=8))
    batches = draw(st.lists(st.integers(0, 3), max_size=4))
    while sum(batches) > len(sent):
        batches.pop()
    batches += [0, len(sent) - sum(batches), 0][: draw(st.integers(2, 3))]
    names = draw(st.lists(st.sampled_from(["one", "two", "rows", "more"]), min_size=1, max_size=3, unique=True))
    made = Values(sent, batches, {name: name in ("rows", "more") for name in names})
    for name in names:
        effects: list[tuple[int, str]] = []
        for number, text in enumerate(sent):
            fate = draw(st.sampled_from(["right"] * 6 + ["lost", "twice", "other", "near", "kind"]))
            if fate == "other":
                text = draw(column)
            elif fate == "near":
                text = _near(text)
            elif fate == "kind":
                text = _other_kind(text)
            effects += [] if fate == "lost" else [(number, text)] * (2 if fate == "twice" else 1)
        made.written[name] = effects
    return made


def _near(text: str) -> str:
    """The text with another last digit, if it has one."""
    at = next((at for at in range(len(text) - 1, -1, -1) if text[at].isdigit()), None)
    return text if at is None else f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}"


def _other_kind(text: str) -> str:
    """A number as a string, or a string as a number."""
    value = read(text)
    if isinstance(value, Digits):
        return json.dumps(str(value))
    return value if isinstance(value, str) and value.isdigit() and value != "" else text
