"""Equal values have equal canonical texts, however they are written, and different values have different ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal, localcontext
from random import Random
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceproof.values import nested
from onceproof.values.canonical import as_text, canonical, is_canonical

Canon = Callable[[str, str], str]


@pytest.fixture(scope="module")
def canon() -> Canon:
    connection = duckdb.connect(config={"autoinstall_known_extensions": False})
    connection.execute("SET TimeZone = 'UTC'")
    for register in nested.FUNCTIONS.values():
        register(connection)

    def of(sql_type: str, text: str) -> str:
        row = connection.execute(f"SELECT {canonical(sql_type, '$text')}", {"text": text}).fetchone()
        assert row is not None
        return str(row[0])

    return of


@pytest.mark.parametrize(
    ("sql_type", "one", "other"),
    [
        ("INTEGER", "1", "1.0"),
        ("BIGINT", "0", "-0.0"),
        ("BIGINT", "1000", "1e3"),
        ("DECIMAL(10,2)", "1.50", "1.5"),
        ("DECIMAL(38,18)", "0E-18", "0"),
        ("DECIMAL(38,18)", "1E-10", "0.000000000100000000"),
        ("DECIMAL(38,18)", "-1.50e-7", "-0.00000015"),
        ("BIGINT", "12e-1", "1.2"),
        ("DOUBLE", "1", "1.0"),
        ("DOUBLE", "-0.0", "0"),
        ("DOUBLE", "NaN", "nan"),
        ("DOUBLE", "1e21", "1000000000000000000000"),
        ("FLOAT", "0.1", "0.10"),
        ("TIMESTAMP", "2013-01-01 10:15:00", "2013-01-01T10:15:00.000Z"),
        ("TIMESTAMP WITH TIME ZONE", "2013-01-01 10:15:00+00", "2013-01-01T12:15:00+02:00"),
        ("DATE", "2013-01-01", "2013-01-01 00:00:00"),
        ("BOOLEAN", "t", "true"),
        ("BLOB", "\\x6869", "aGk="),
        ("UUID", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("STRUCT(a INTEGER)", '{"a": 1}', '{"a":1}'),
        ("INTEGER[]", "[1, 2]", "[1,2]"),
        ("STRUCT(a INTEGER, b INTEGER)", '{"b": 2, "a": 1}', '{"a":1,"b":2}'),
        ("JSON", '{"a":{"y":[1.0,{"q":1e3,"p":null}]}}', '{"a":{"y":[1,{"p":null,"q":1000}]}}'),
        ("JSON", "[1e-7,-0.0,1e999999999]", "[0.00000010,0,10e999999998]"),
        ("DOUBLE[]", "[12345678901234567890.25,1.12345678901234567]", "[12345678901234567890.75,1.12345678901234569]"),
        ("FLOAT[]", "[0.1]", "[0.10000000149011612]"),
        ("STRUCT(a MAP(VARCHAR, DECIMAL(9,2)))", '{"a":{"x,(":"1.50"}}', '{"a":{"x,(":1.5}}'),
        ("JSON", '{"a":2,"a":1}', '{"a":1}'),
        ("TIME", "10:15:00.5", "10:15:00.500000"),
        ("INTERVAL", "1 day", "24:00:00"),
        ("INTERVAL", "14 months", "1 year 2 mons"),
        ("INTERVAL", "1 day 02:00:00", "P1DT2H"),
        ("INTERVAL", "1 year 2 months 3 days 04:05:06.789", "P1Y2M3DT4H5M6.789S"),
        ("INTERVAL", "-1 days 2 hours", "P-1DT2H"),
        ("INTERVAL", "-01:30:00", "PT-1H-30M"),
        ("INTERVAL", "-00:00:00.5", "PT-0.5S"),
        ("INTERVAL", "00:00:00", "PT0S"),
        ("INTERVAL", "14 days", "P2W"),
        ("JSON", "[NaN]", '["NaN"]'),
        ("DOUBLE[]", "{NaN}", "[NaN]"),
        ("BOOLEAN[2]", "{t,f}", "[true,false]"),
        ("INTEGER[]", "{1,NULL,3}", "[1,null,3]"),
        ("INTEGER[]", "{}", "[]"),
        ("DOUBLE[][]", "{{1,2.50},{3e2,4}}", "[[1.0,2.5],[300,4]]"),
        ("BOOLEAN[]", "{t,f,NULL}", "[true,false,null]"),
        ("VARCHAR[]", '{a,"b c","say \\"x\\"","{}",NULL,"NULL",1}', '["a","b c","say \\"x\\"","{}",null,"NULL","1"]'),
    ],
)
def test_equal_values_have_equal_texts(canon: Canon, sql_type: str, one: str, other: str) -> None:
    assert canon(sql_type, one) == canon(sql_type, other)


@pytest.mark.parametrize(
    ("sql_type", "one", "other"),
    [
        ("INTEGER", "2", "1.7"),
        ("INTEGER", "10", "1"),
        ("INTEGER", "100", "1"),
        ("BIGINT", "9007199254740993", "9007199254740992"),
        ("DECIMAL(3,2)", "1.24", "1.235"),
        ("INTEGER", "0", "1e-10"),
        ("DECIMAL(10,2)", "0", "1e-10"),
        ("DECIMAL(3,1)", "1.1", "1.1000000001e0"),
        ("DECIMAL(38,9)", "1", "1.00000000000000000000000001e0"),
        ("DECIMAL(38,0)", "1", "1e99999999999"),
        ("DOUBLE", "0.1", "0.10000000000000002"),
        ("DOUBLE", "1.0", "one"),
        ("TIMESTAMP", "2013-01-01 10:15:00", "2013-01-01 10:15:00.000001"),
        ("DATE", "2013-01-01", "2013-01-01 10:00:00"),
        ("VARCHAR", "1", "1.0"),
        ("VARCHAR", "a", "A"),
        ("BLOB", "\\x6869", "aGg="),
        ("BLOB", "\\xab", "ab"),
        ("BLOB[]", '["\\\\x6869"]', '["hi"]'),
        ("BLOB[]", '["\\\\x6869"]', '["aGg="]'),
        ("JSON", "[1,2]", "[2,1]"),
        ("JSON", '["1"]', "[1]"),
        ("JSON", '{"a":1,"a":2}', '{"a":1}'),
        ("JSON", "[12345678901234567890.25]", "[12345678901234567890.75]"),
        ("JSON", "[1.12345678901234567]", "[1.12345678901234569]"),
        ('STRUCT("a b" BIGINT)', '{"a b":1}', '{"a b":"1"}'),
        ("DOUBLE", "1000.0", "1_000"),
        ("DOUBLE", "5", " 5 "),
        ("INTERVAL", "1 month", "30 days"),
        ("INTERVAL", "1 month", "PT1M"),
        ("INTERVAL", "1 day", "P-1D"),
        ("INTERVAL", "00:00:00", "P"),
        ("TIME", "10:15:00", "10:15:00+05"),
        ("TIME", "10:15:00", "1999-01-01 10:15:00"),
        ("TIME", "10:15:00.5", "10:15:00.500001"),
        ("JSON", "[9007199254740993]", "[9007199254740992]"),
        ("JSON", "[1.0000000000000002]", "[1]"),
        ("JSON", "[1e99999999999999999999]", "[1]"),
        ("JSON", r'["\ud800"]', '[""]'),
        ("VARCHAR[]", "{NULL}", '["NULL"]'),
        ("VARCHAR[]", "{1}", "[1]"),
        ("INTEGER[]", "{1,}", "[1]"),
        ("INTEGER[]", "[0:1]={1,2}", "[2,1]"),
        ("VARCHAR[]", "{A0}", '["a0"]'),
        ("STRUCT(a INTEGER, b INTEGER)", "(1,2)", '{"a":2,"b":1}'),
        ("STRUCT(a INTEGER, b INTEGER)", "(1)", '{"a":1,"b":null}'),
        ("STRUCT(a INTEGER, b INTEGER)", "(1,2,3)", '{"a":1,"b":2}'),
        ("STRUCT(a VARCHAR)", '("")', '{"a":null}'),
        ("DATE", "0044-03-15 BC", "0044-03-15"),
        ("INTEGER[]", "{1}}", "[1]"),
        ("INTEGER[]", "{1", "[1]"),
    ],
)
def test_different_values_have_different_texts(canon: Canon, sql_type: str, one: str, other: str) -> None:
    assert canon(sql_type, one) != canon(sql_type, other)


@given(
    st.from_regex(
        r"[+-]?([0-9]{1,40}([.][0-9]{0,40})?|[.][0-9]{1,40})[eE][+-]?[0-9]{1,2}",
        fullmatch=True,
        alphabet="+-.0123456789eE",
    ),
    st.sampled_from(["BIGINT", "DECIMAL(38,9)", "DECIMAL(3,2)"]),
)
def test_number_with_an_exponent_is_exact(canon: Canon, text: str, sql_type: str) -> None:
    plain = canon(sql_type, text)
    assert "e" not in plain.lower()
    with localcontext(prec=300):
        assert plain == canon(sql_type, format(Decimal(text), "f"))
        assert Decimal(plain) == Decimal(text)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(_JSON.filter(lambda value: isinstance(value, list | dict)), st.randoms(use_true_random=False))
def test_nested_values_are_equal_in_any_order_and_spacing(value: Any, shuffle: Random) -> None:
    def shuffled(inner: Any) -> Any:
        if isinstance(inner, dict):
            names = list(inner)
            shuffle.shuffle(names)
            return {name: shuffled(inner[name]) for name in names}
        return [shuffled(one) for one in inner] if isinstance(inner, list) else inner

    text = nested.canonical_nested(json.dumps(value), "JSON")
    assert json.loads(text) == value
    assert nested.canonical_nested(json.dumps(shuffled(value), indent=2, ensure_ascii=False), "JSON") == text


@given(st.text(alphabet='{}[],:"\\ 1eaN.-', max_size=20), st.sampled_from(["JSON", "INTEGER[]", "VARCHAR[][]"]))
def test_text_that_is_not_a_nested_value_stays_unchanged(text: str, sql_type: str) -> None:
    once = nested.canonical_nested(text, sql_type)
    assert nested.canonical_nested(once, sql_type) == once


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1::TINYINT", "1"),
        ("1.50::DECIMAL(5,2)", "1.5"),
        ("1::DOUBLE", "1"),
        ("-0.0::DOUBLE", "0"),
        ("'-inf'::DOUBLE", "-Infinity"),
        ("0.1::FLOAT", "0.1"),
        ("TIMESTAMP '2013-01-01 10:15:00'", "2013-01-01 10:15:00"),
        ("TIMESTAMPTZ '2013-01-01 10:15:00+02'", "2013-01-01 08:15:00+00"),
        ("TIMESTAMP_NS '2013-01-01 10:15:00'", "2013-01-01T10:15:00Z"),
        ("DATE '2013-01-01'", "2013-01-01"),
        ("DATE '0044-03-15 (BC)'", "0044-03-15 (BC)"),
        ("DATE '0044-03-15 (BC)'", "0044-03-15 BC"),
        ("TIMESTAMP '0044-03-15 (BC) 12:00:00.5'", "0044-03-15 12:00:00.5 BC"),
        ("TIMESTAMPTZ '0044-03-15 (BC) 12:00:00+00'", "0044-03-15 12:00:00+00 BC"),
        ("[DATE '0044-03-15 (BC)', '-infinity'::DATE]", '{"0044-03-15 BC",-infinity}'),
        ("DATE '5877641-06-23'", "5877641-06-23"),  # outside the range of a 64-bit timestamp
        ("'infinity'::TIMESTAMP", "infinity"),
        ("'-infinity'::DATE", "-infinity"),
        ("'infinity'::TIMESTAMPTZ", "Infinity"),
        ("[1, 2]", "[0:1]={1,2}"),
        ("[[1, 2], [3, 4]]", "[0:1][-1:0]={{1,2},{3,4}}"),
        ("['A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::UUID]", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}"),
        ("['A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::UUID]", '["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"]'),
        ("{'u': 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::UUID}", '{"u":"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"}'),
        ("MAP {'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::UUID: 1}", '{"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11":1}'),
        ("{'a': 1, 'u': 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::UUID}", "(1,a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11)"),
        ("{'a': NULL::INTEGER, 'b': 'a, \"b\" (c)\\d', 'c': true}", '(,"a, ""b"" (c)\\\\d",t)'),
        ("{'a': [1, 2], 'b': {'c': 1.50}, 'd': ''}", '("{1,2}","(1.5)","")'),
        ("[{'a': 1, 'b': 'x y'}, {'a': NULL, 'b': 'z'}]", '{"(1,\\"x y\\")","(,z)"}'),
        ("['{\"a\": 1}'::JSON]", '{"{\\"a\\": 1.0}"}'),
        ("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::UUID", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"),
        ("true", "t"),
        ("'hi'::BLOB", "\\x6869"),
        ("['hi'::BLOB, '\\xFF\\x00'::BLOB]", '{"\\\\x6869","\\\\xff00"}'),
        ("['hi'::BLOB, '\\xFF\\x00'::BLOB, NULL]", '["aGk=","/wA=",null]'),
        ("['\\x5Cx6869'::BLOB]", '{"\\\\x5c7836383639"}'),  # these characters, and not the bytes of that hex
        ("['aGk='::BLOB]", '["YUdrPQ=="]'),
        ("{'a': 1, 'b': 'hi'::BLOB}", '(1,"\\\\x6869")'),
        ("{'a': 1.50, 'b': ['hi'::BLOB]}", '{"b":["aGk="],"a":1.5}'),
        ("MAP {'k': 'hi'::BLOB}", '{"k":"aGk="}'),
        ("{'a': 1, 'b': [1, 2]}", '{"a":1,"b":[1,2]}'),
        ("'x'", "x"),
    ],
)
def test_expected_value_equals_its_text_in_an_output(canon: Canon, value: str, text: str) -> None:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for make in nested.FUNCTIONS.values():
        make(connection)
    row = connection.execute(f"SELECT typeof(v), {as_text(_type_of(value), 'v')} FROM (SELECT {value} AS v)").fetchone()
    assert row is not None
    assert canon(row[0], row[1]) == canon(row[0], text)
    assert not is_canonical(row[0]) or row[1] == canon(row[0], row[1])


def _type_of(value: str) -> str:
    row = duckdb.connect().execute(f"SELECT typeof({value})").fetchone()
    assert row is not None
    return str(row[0])
