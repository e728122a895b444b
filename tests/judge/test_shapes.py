"""One regular expression shows what values look like, and gives the same columns as three functions of JSON."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceproof.oracle.contract import columns
from onceproof.values.shapes import shape_of

VALUES = st.none() | st.booleans() | st.integers(-(10**16), 10**16) | st.floats(allow_nan=False) | st.text(max_size=4)
MORE = st.lists(VALUES, max_size=1) | st.dictionaries(st.text(max_size=2), VALUES, max_size=1)
WRITTEN = st.sampled_from([(",", ":"), (", ", ": ")])


@st.composite
def alike(draw: st.DrawFn) -> list[str]:
    """Texts that mostly have one shape."""
    names = draw(
        st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=3), min_size=1, max_size=3, unique=True)
    )
    kinds = [
        draw(st.sampled_from([st.integers(-99, 10**15), st.floats(-9, 9), st.text(max_size=4), st.booleans()]))
        for _ in names
    ]
    separators = draw(WRITTEN)
    texts = []
    for _ in range(draw(st.integers(1, 4))):
        odd = draw(st.integers(0, 9)) == 0
        row = {name: draw(VALUES | MORE) if odd else draw(kind) for name, kind in zip(names, kinds, strict=True)}
        texts.append(json.dumps(row, ensure_ascii=False, separators=separators))
    return texts


@given(texts=alike())
def test_a_shape_gives_the_fields_that_functions_of_json_give(texts: list[str]) -> None:
    shape = shape_of(texts)
    with duckdb.connect() as db:
        db.execute("CREATE TABLE rows AS SELECT unnest($t) AS text", {"t": texts})
        if shape is None or db.execute(
            "SELECT count(*) FROM rows WHERE NOT regexp_full_match(text, $p)", {"p": shape.pattern}
        ).fetchone() != (0,):
            return
        fields, repeated = columns._fields(_Sql(db), "text", "FROM rows")
        assert not repeated
        nothing = columns._Asked((), {})

        def read(found: dict[str, Any], short: bool) -> dict[str, Any]:
            numbers = columns._numbers(_Sql(db), "text", "FROM rows WHERE true", found, nothing, short=short)
            assert numbers is None
            return {name: columns._structure_of(kind, (name,), numbers, nothing) for name, kind in found.items()}

        assert read(columns._types_of(shape), True) == read(fields, False)


class _Sql:
    """What `columns` needs of a connection."""

    def __init__(self, db: duckdb.DuckDBPyConnection) -> None:
        self.sql = db.execute


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '{"a":{"b":1}}',
        '{"a":[1]}',
        '{"a":null}',
        "{}",
        "[1]",
        "1",
        "",
        None,
        '{"a\\"":1}',
        '{"a":1}}',
    ],
)
def test_texts_without_a_plain_shape(text: str | None) -> None:
    assert shape_of([text]) is None


@pytest.mark.parametrize(
    "other",
    [
        '{"a":"1"}',
        '{"a":1.5}',
        '{"a":1234567890123456}',
        '{"a":01}',
        '{"a":-0}',
        '{"b":1}',
        '{"a":1,"b":2}',
        '{"a":1} ',
        '{"a":1,"a":1}',
    ],
)
def test_a_text_of_another_shape_does_not_match(other: str) -> None:
    shape = shape_of(['{"a":1}', '{"a":null}'])
    assert shape is not None
    with duckdb.connect() as db:
        matches = db.execute("SELECT regexp_full_match($t, $p)", {"t": other, "p": shape.pattern}).fetchone()
    assert matches == (False,)
