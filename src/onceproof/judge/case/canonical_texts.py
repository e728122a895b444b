"""The values of an output as canonical texts: SQL over its rows as they were observed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from onceproof.judge.case.outputs import Reading
from onceproof.judge.case.record_key import BESIDE_THE_VALUE, HEADERS, KEY_TEXT
from onceproof.judge.case.record_key import COLUMN as RECORD_KEY
from onceproof.stores.contract import StoresBits, store_of
from onceproof.values import documents
from onceproof.values.canonical import WHOLE_NUMBERS, canonical_rows, is_nested, literal, quote
from onceproof.values.nested import EXACT_NUMBERS

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

#: Kinds (`onceproof.values.documents`) that are not written in quotes.
NUMBERS = (documents.WHOLE, documents.FRACTION, documents.BOOLEAN)


def canonical_texts(case: Case, output: str, columns: Mapping[str, str], reading: Reading, source: str) -> str:
    """SQL for the rows of ``source`` with these columns (name -> type) as canonical texts, in place of ``content``.

    The columns may have the names of ours, so each has a ``=`` before its name.
    """
    spec = case.scenario.outputs[output]
    members = {name: kind for name, kind in columns.items() if name not in BESIDE_THE_VALUE}
    # A string inside JSON keeps its quotes, and is neither an object nor a list; a table gives JSON as plain text.
    any_json = not spec.has_rows
    quoted = any_json and not all_texts(case, output)
    if spec.expected == "empty" and spec.has_rows:
        source = f"SELECT * REPLACE (json_object('row', content)::VARCHAR AS content) FROM ({source})"  # noqa: S608
    kinds = {
        name: "JSON" if (kind == "JSON" and any_json) or (is_nested(kind) and quoted) else "VARCHAR"
        for name, kind in members.items()
    }
    parsed = "NULL AS f" if reading.exact else f"json_transform(content, {literal(json.dumps(kinds))}) AS f"
    twice = reading.exact or reading.long_numbers
    if twice:
        texts_only = all_texts(case, output)
        wanted = {
            name: (reading.members.get(name, name), documents.OTHER if texts_only else kind_of(kind))
            for name, kind in members.items()
        }
        again = f"{documents.FUNCTION}(content, {literal(documents.fields_of(wanted))})"
        again = f"json_transform({again}, {literal(json.dumps(dict.fromkeys(members, 'VARCHAR')))})"
        if not reading.exact:
            again = f"CASE WHEN regexp_matches(content, {literal(documents.LONG_FRACTION)}) THEN {again} END"
        parsed += f", {again} AS d"
    fields = {name: f"={name}" for name in columns}
    bits = _bits(case, output, columns, reading)
    opened = ", ".join(
        f"{_of_bit(_field(name, reading)) if name in bits else _field(name, reading)} AS {quote(field)}"
        for name, field in fields.items()
    )
    return canonical_rows(
        f"""SELECT * EXCLUDE ({"f, d" if twice else "f"}, content), {opened}
            FROM (SELECT *, {parsed} FROM ({source}))""",  # noqa: S608
        {fields[name]: sql_type for name, sql_type in columns.items() if name not in reading.canonical},
        arrays=not quoted,
    )


def _bits(case: Case, output: str, columns: Mapping[str, str], reading: Reading) -> set[str]:
    """The columns that are expected to be truth values, and that the database stores as 0 and 1."""
    store, record = store_of(case.scenario.outputs[output]), (case.run.outputs or {}).get(output)
    if not isinstance(store, StoresBits) or record is None:
        return set()
    stored = record.columns or {}
    return {
        name
        for name, kind in columns.items()
        if kind == "BOOLEAN" and store.is_bit(stored.get(reading.members.get(name, name), ""))
    }


def _of_bit(text: str) -> str:
    """SQL for a bit as a truth value. Another number stays as it is, and so equals none."""
    return f"CASE WHEN {text} IN ('1', '\\x01') THEN 'true' WHEN {text} IN ('0', '\\x00') THEN 'false' ELSE {text} END"


def _field(name: str, reading: Reading) -> str:
    """SQL for a field's text, from the exact parsing if there was one."""
    if name == RECORD_KEY:
        return KEY_TEXT
    if name == HEADERS:
        return "headers"
    once, again = f"f.{quote(name)}", f"d.{quote(name)}"
    if reading.exact:
        return again
    return f"CASE WHEN d IS NULL THEN {once} ELSE {again} END" if reading.long_numbers else once


def all_texts(case: Case, output: str) -> bool:
    """Whether every value of the output is text, whatever its type, or is compared with text observed in another run."""
    spec = case.scenario.outputs[output]
    return spec.has_rows or spec.decode in ("string", "bytes") or case.answer.texts


def kind_of(sql_type: str) -> str:
    """The kind (`onceproof.values.documents`) for a member that is compared as this type (`onceproof.values.canonical`)."""
    kind = sql_type.split("(")[0].strip()
    if is_nested(sql_type):
        return documents.JSON
    if kind in EXACT_NUMBERS:
        return documents.DECIMAL
    if kind in WHOLE_NUMBERS:
        return documents.WHOLE
    kinds = {"DOUBLE": documents.FRACTION, "FLOAT": documents.FRACTION, "BOOLEAN": documents.BOOLEAN}
    return kinds.get(kind, documents.TEXT if kind in ("VARCHAR", "ENUM") else documents.OTHER)
