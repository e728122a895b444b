"""The form in which the values of an output are written: the same members in the same order, with the same blanks and digits.

Most jobs write all values in one form. If it is known, the text of an expected row can be made in it, and a value with the same
text needs no decoding: equal bytes are equal values. `form_of` derives a form from some values. It proves nothing of the others:
a value that is written otherwise has another text than what is expected, and is then decoded and compared by its contents.

`Form.text` gives equal texts for equal rows, and different ones for different rows, whatever wrote them:

- values that no JSON text would hold as they are (with quotes, backslashes or control characters), and texts that could be mistaken
  for a missing value, are not put in place: the row's text is then ``x`` and a JSON object of all values;
- the key and the headers of a record come first, each with its length.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from onceproof.values.canonical import document, literal
from onceproof.values.documents import Number

T = TypeVar("T")

#: That many of the values, as a fraction, must have the form.
_MOST = 0.9
# Of fewer numbers it may be a coincidence that they have the same number of decimal places: of those that need at most two, nine in
# ten need both.
_SEVERAL, _NEARLY_ALL = 50, 0.97


@dataclass(frozen=True)
class Member:
    """A member of the form."""

    name: str
    quoted: bool
    places: int = 0
    """How many decimal places its numbers have at least; 0: as many as they need."""


@dataclass(frozen=True)
class Form:
    """How values are written."""

    members: tuple[Member, ...]
    colon: str = ":"
    comma: str = ","

    def text(self, fields: Mapping[str, str], leading: Sequence[str] = ()) -> str:
        """SQL for the text of a row with these canonical texts (name -> column), after the ``leading`` ones, which are not members."""
        quoted = [fields[member.name] for member in self.members if member.quoted]
        odd = [f"{fields[member.name]} = 'null'" for member in self.members if not member.quoted]
        if quoted:
            together = f"concat({', '.join(quoted)})"
            odd.append(f"strlen(to_json({together})::VARCHAR) <> strlen({together}) + 2")
        everything = [*(fields[member.name] for member in self.members), *leading]
        missing = " OR ".join(f"{column} IS NULL" for column in everything)
        # Most rows lack no value; their text is made of fewer pieces.
        return f"""CASE WHEN coalesce({" OR ".join(odd)}, false) THEN 'x' || {document({f"_{n}": e for n, e in enumerate(everything)})}
                        WHEN {missing} THEN {self._text(fields, leading, complete=False)}
                        ELSE {self._text(fields, leading, complete=True)} END"""

    def _text(self, fields: Mapping[str, str], leading: Sequence[str], *, complete: bool) -> str:
        """SQL for the text of a row. With ``complete``, no value is NULL."""
        pieces = [piece for column in leading for piece in _leading(column, complete=complete)]
        constant = "{"
        for member in self.members:
            column = fields[member.name]
            value = column if member.quoted else _with_places(column, member.places)
            mark = '"' if member.quoted and complete else ""
            if not complete:
                written = f"""concat('"', {column}, '"')""" if member.quoted else value
                value = f"CASE WHEN {column} IS NULL THEN 'null' ELSE {written} END"
            pieces += [literal(f"{constant}{_string(member.name)}{self.colon}{mark}"), value]
            constant = mark + self.comma
        pieces.append(literal(constant.removesuffix(self.comma) + "}"))
        return f"concat({', '.join(pieces)})"


def observed(content: str, leading: Sequence[str] = ()) -> str:
    """SQL for the text of a value as it was written. NULL if it is not a JSON object, or missing."""
    text = content
    if leading:
        missing = " OR ".join(f"{column} IS NULL" for column in leading)
        some, all_ = (
            f"concat({', '.join([*(p for column in leading for p in _leading(column, complete=complete)), content])})"
            for complete in (False, True)
        )
        text = f"CASE WHEN {missing} THEN {some} ELSE {all_} END"
    return f"CASE WHEN starts_with({content}, '{{') THEN {text} END"


def _leading(column: str, *, complete: bool) -> list[str]:
    """SQL for pieces of a text with its length, so that it is clear where it ends; NULL is a value of its own."""
    pieces = [f"strlen({column})", "':'", column]
    return pieces if complete else [f"CASE WHEN {column} IS NULL THEN '-' ELSE concat({', '.join(pieces)}) END"]


def _with_places(value: str, places: int) -> str:
    """SQL for a number with at least so many decimal places. Different numbers stay different: nothing is cut off."""
    if not places:
        return value
    point = f"instr({value}, '.')"
    missing = " ".join(f"WHEN {n} THEN concat({value}, '{'0' * (places - n)}')" for n in range(1, places))
    padded = f"CASE strlen({value}) - {point} {missing} ELSE {value} END" if missing else value
    return f"""CASE WHEN contains({value}, 'e') THEN {value}
                    WHEN {point} = 0 THEN concat({value}, '.{"0" * places}') ELSE {padded} END"""


def form_of(texts: Iterable[str]) -> Form | None:
    """The form of most of these JSON objects; None if they have none in common."""
    texts = list(texts)
    parsed = [(text, _members(text)) for text in texts]
    objects = [(text, members) for text, members in parsed if members]
    names = _usual((tuple(members) for _, members in objects), of=len(texts))
    if names is None:
        return None
    objects = [(text, members) for text, members in objects if tuple(members) == names]
    found = [_member(name, [members[name] for _, members in objects]) for name in names]
    kept = tuple(member for member in found if member is not None)
    for colon, comma in ((":", ","), (": ", ", ")) if len(kept) == len(found) else ():
        form = Form(kept, colon, comma)
        if sum(_rewritten(form, members) == text for text, members in objects) >= _MOST * len(texts):
            return form
    return None


def _members(text: str) -> dict[str, object] | None:
    """The members of a JSON object, with the digits of numbers; None for other texts, and for names that occur twice."""
    try:
        pairs = json.loads(text, object_pairs_hook=list, parse_int=Number, parse_float=Number)
    except (ValueError, RecursionError):
        return None
    if not (isinstance(pairs, list) and all(isinstance(pair, tuple) for pair in pairs)):
        return None
    return dict(pairs) if len(dict(pairs)) == len(pairs) else None


def _member(name: str, values: list[object]) -> Member | None:
    """The member with these values; None if they are nested, or null."""
    kind = _usual((type(value) for value in values if value is not None), of=1)
    if kind not in (str, Number, bool):
        return None
    places = [len(value.partition(".")[2]) for value in values if isinstance(value, Number)]
    return Member(name, kind is str, _usual(places, of=_SEVERAL, most=_NEARLY_ALL) or 0)


def _usual(values: Iterable[T], *, of: int, most: float = _MOST) -> T | None:
    """The value that this part of these, and of so many, has; None if there is none."""
    counted = Counter(values)
    for value, times in counted.most_common(1):
        if times >= most * max(of, counted.total()):
            return value
    return None


def _rewritten(form: Form, members: Mapping[str, object]) -> str:
    values = form.comma.join(f"{_string(m.name)}{form.colon}{_value(m, members[m.name])}" for m in form.members)
    return f"{{{values}}}"


def _value(member: Member, value: object) -> str:
    if member.quoted and value is not None:
        return f'"{value}"'
    return value if isinstance(value, Number) else json.dumps(value)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
