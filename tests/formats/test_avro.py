"""Avro: values survive the way into bytes and back, exactly, also through a newer schema."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceproof.base.errors import UsageError
from onceproof.formats import values
from onceproof.formats.avro import Avro
from onceproof.formats.registry import AVRO, Schema

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}},
        {"name": "fee", "type": {"type": "fixed", "name": "Fee", "size": 8, "logicalType": "decimal", "precision": 18, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "opens", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "closes", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "weight", "type": "float"},
        {"name": "parts", "type": {"type": "array", "items": {"type": "record", "name": "Part", "fields": [{"name": "n", "type": "int"}, {"name": "next", "type": ["null", "Part"], "default": None}]}}},
        {"name": "tags", "type": {"type": "map", "values": "double"}},
        {"name": "raw", "type": "bytes"},
        {"name": "either", "type": ["string", "long", "boolean"]},
    ],
}  # fmt: skip
VALUE = {
    "id": 2**63 - 1,
    "amount": "1234567890123456789012345678.0123456789",
    "fee": "-1.50",
    "at": "2026-01-02T03:04:05.000006+00:00",
    "seen": "2026-01-02T03:04:05.006000+00:00",
    "local": "2026-01-02T03:04:05.000006",
    "day": "0001-01-01",
    "opens": "08:30:00.001000",
    "closes": "23:59:59.999999",
    "key": "00000000-0000-0000-0000-000000000001",
    "state": "PAID",
    "note": None,
    "weight": Decimal("0.1"),
    "parts": [{"n": 1, "next": {"n": 2, "next": None}}],
    "tags": {"a": Decimal("0.5")},
    "raw": "AP8=",
    "either": True,
}


def avro(schema: Any) -> Avro:
    return Avro(Schema(AVRO, json.dumps(schema)))


def record(*fields: dict[str, Any]) -> Avro:
    return avro({"type": "record", "name": "R", "fields": list(fields)})


def test_every_type_survives_and_decimals_keep_their_digits() -> None:
    order = avro(ORDER)
    shown = values.document(order.decode(order.encode(VALUE)))
    found = json.loads(shown, parse_float=Decimal)
    assert found == VALUE | {"amount": Decimal(VALUE["amount"]), "fee": Decimal("-1.50")}  # type: ignore[arg-type]
    assert '"amount":1234567890123456789012345678.0123456789' in shown and '"weight":0.1,' in shown


def test_the_types_that_json_does_not_show() -> None:
    found = avro(ORDER).types()
    assert found["amount",] == "DECIMAL(38,10)" and found["fee",] == "DECIMAL(18,2)"
    assert found["at",] == found["seen",] == "TIMESTAMP WITH TIME ZONE" and found["local",] == "TIMESTAMP"
    assert (found["day",], found["opens",], found["closes",], found["key",]) == ("DATE", "TIME", "TIME", "UUID")
    assert found["weight",] == "FLOAT" and found["tags", "*"] == "DOUBLE" and found["id",] in ("", "whole number")


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("int", 2**31, "it is too large"),
        ("int", True, "not a whole number"),
        ("string", 1, "it is not text"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "1.234", "precision 4 and scale 2"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "100", "precision 4 and scale 2"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "2026-01-01T00:00:00.000001Z", "microseconds"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "2026-01-01T00:00:00Z", "no time zone"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "one of A"),
        (["null", "long"], "x", "fits no type of its union"),
    ],
)
def test_a_value_that_does_not_fit_names_the_field(kind: Any, value: Any, why: str) -> None:
    with pytest.raises(ValueError, match="field x") as found:
        record({"name": "x", "type": kind}).encode({"x": value})
    assert why in str(found.value)


DAY = {"type": "int", "logicalType": "date"}
MOMENT = {"type": "long", "logicalType": "timestamp-millis"}
MILLIS, MICROS = (
    {"type": kind, "logicalType": f"time-{unit}s"} for kind, unit in (("int", "milli"), ("long", "micro"))
)


@pytest.mark.parametrize(
    ("union", "value", "meant"),
    [
        ([DAY, MOMENT], "2013-01-01T10:00:00Z", "2013-01-01T10:00:00+00:00"),
        ([DAY, MOMENT], "2013-01-01T00:00:00Z", "2013-01-01T00:00:00+00:00"),
        ([MOMENT, "null", DAY], "2013-01-01", "2013-01-01"),
        ([DAY, "string", MOMENT], "2013-01-01", "2013-01-01"),
        ([MILLIS, MICROS], "10:00:00.123456", "10:00:00.123456"),
        (["null", MICROS, MILLIS], "10:00:00", "10:00:00"),
        ([MOMENT, "string"], "at noon", "at noon"),
    ],
)
def test_a_time_in_a_union_is_written_as_the_type_that_holds_all_of_it(union: Any, value: str, meant: str) -> None:
    made = record({"name": "x", "type": union})
    assert json.loads(values.document(made.decode(made.encode({"x": value})))) == {"x": meant}


@pytest.mark.parametrize(
    ("union", "default", "meant"),
    [
        ([MOMENT, "string"], 5, "1970-01-01T00:00:00.005000+00:00"),
        ([DAY, MOMENT], 5, "1970-01-06"),
        (["string", MOMENT], "5", "5"),
        ([{"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "string"], "\u0001", 0.01),
    ],
)
def test_a_default_of_a_union_is_a_value_of_its_type(union: Any, default: Any, meant: Any) -> None:
    newer = record({"name": "x", "type": union, "default": default})
    older = record()
    for found in (older.decode(older.encode({}), newer), newer.decode(newer.encode({}))):
        assert json.loads(values.document(found)) == {"x": meant}


def test_a_union_that_has_a_type_twice_is_refused() -> None:
    inner = {"type": "array", "items": ["long", MOMENT]}
    with pytest.raises(UsageError, match="a union has the type long twice"):
        record({"name": "x", "type": inner})


def test_a_missing_field_needs_a_default() -> None:
    with pytest.raises(ValueError, match="field x is missing"):
        record({"name": "x", "type": "long"}).encode({})
    made = record({"name": "x", "type": "long", "default": 7})
    assert made.decode(made.encode({"y": 1})) == {"x": 7}


def test_a_newer_schema_reads_what_an_older_one_wrote() -> None:
    old = record({"name": "id", "type": "int"}, {"name": "gone", "type": "string"})
    cents = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    added = [
        {"name": "money", "type": cents, "default": "\u0001"},
        {"name": "all", "type": {"type": "record", "name": "S", "fields": [{"name": "m", "type": cents, "default": "\u00ff"}]}, "default": {}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 1},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 1},
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
        {"name": "maybe", "type": ["null", "string"], "default": None},
        {"name": "small", "type": "float", "default": 0.1},
    ]  # fmt: skip
    new = record({"name": "id", "type": "long"}, *added)
    assert old.resolve_problem(new) is None
    expected = {
        "id": 1,
        "money": Decimal("0.01"),
        "all": {"m": Decimal("-0.01")},
        "at": datetime.datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=datetime.UTC),
        "day": datetime.date(1970, 1, 2),
        "raw": b"\xff",
        "maybe": None,
        "small": "0.1",
    }
    assert old.decode(old.encode({"id": 1, "gone": "x"}), new) == expected
    assert new.decode(new.encode({"id": 1})) == expected


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ({"name": "x", "type": "string"}, {"name": "x", "type": "long"}, "field 'x' is written as string and read as long"),
        ({"name": "x", "type": "long"}, {"name": "y", "type": "long"}, "field 'y' of R is not written"),
        ({"name": "x", "type": ["null", "long"]}, {"name": "x", "type": "long"}, "written as null"),
    ],
)  # fmt: skip
def test_an_incompatible_schema_is_found_before_a_value_is_read(one: Any, other: Any, why: str) -> None:
    assert why in (record(one).resolve_problem(record(other)) or "")


MICROS = {"type": "long", "logicalType": "timestamp-micros"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
UUID_TEXT = {"type": "string", "logicalType": "uuid"}
WHEN = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("written", "read", "value", "expected"),
    [
        (MICROS, "long", "1970-01-01T00:00:01", 1_000_000),
        (MICROS, MICROS, "1970-01-01T00:00:01", WHEN),
        ("long", MICROS, 1_000_000, WHEN),
        ({"type": "int", "logicalType": "date"}, "int", "1970-01-03", 2),
        ({"type": "int", "logicalType": "date"}, "long", "1970-01-03", 2),
        (["null", MICROS], ["null", "long"], "1970-01-01T00:00:01", 1_000_000),
        (["null", MICROS], ["null", MICROS], "1970-01-01T00:00:01", WHEN),
        (CENTS, "bytes", "1.50", b"\x00\x96"),
        ("bytes", CENTS, "AJY=", Decimal("1.50")),
        (CENTS, CENTS | {"precision": 12}, "1.50", Decimal("1.50")),
        (UUID_TEXT, "string", "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000a"),
        ({"type": "array", "items": MICROS}, {"type": "array", "items": "long"}, ["1970-01-01T00:00:01"], [1_000_000]),
        ({"type": "map", "values": MICROS}, {"type": "map", "values": "long"}, {"a": "1970-01-01T00:00:01"}, {"a": 1_000_000}),
    ],
)  # fmt: skip
def test_a_value_means_what_the_schema_says_by_which_it_is_read(
    written: Any, read: Any, value: Any, expected: Any
) -> None:
    writer, reader = record({"name": "x", "type": written}), record({"name": "x", "type": read})
    assert writer.decode(writer.encode({"x": value}), reader) == {"x": expected}


def test_a_nested_record_is_read_by_its_own_types() -> None:
    def of(kind: Any) -> Avro:
        part = {"type": "record", "name": "Part", "fields": [{"name": "at", "type": kind}]}
        return record({"name": "one", "type": part}, {"name": "two", "type": ["null", "Part"]})

    writer = of(MICROS)
    body = writer.encode({"one": {"at": 1}, "two": {"at": 2}})
    assert writer.decode(body, of("long")) == {"one": {"at": 1}, "two": {"at": 2}}


@pytest.mark.parametrize(
    ("written", "read", "why"),
    [
        (MILLIS, MICROS, "field 'x' is written as timestamp-millis and read as timestamp-micros"),
        (["null", MILLIS], ["null", MICROS], "written as timestamp-millis and read as timestamp-micros"),
        (CENTS, CENTS | {"scale": 3}, "written as decimal with scale 2 and read with scale 3"),
    ],
)
def test_a_value_whose_meaning_is_unclear_is_refused(written: Any, read: Any, why: str) -> None:
    writer, reader = record({"name": "x", "type": written}), record({"name": "x", "type": read})
    assert why in (writer.resolve_problem(reader) or "")
    with pytest.raises(ValueError, match=why):
        writer.decode(writer.encode({"x": 1}), reader)


def test_bytes_of_another_schema_are_refused() -> None:
    with pytest.raises(ValueError, match="bytes are left after the value"):
        record({"name": "x", "type": "long"}).decode(b"\x02\x02")


def test_a_text_that_is_not_a_schema_is_refused() -> None:
    for text in (
        "{",
        '{"type": "recrod"}',
        "[]{}",
        '{"type": "record", "name": "R", "fields": [{"name": "x", "type": "Gone"}]}',
    ):
        with pytest.raises(UsageError, match="is not an Avro schema"):
            Avro(Schema(AVRO, text))


def test_a_schema_uses_those_that_it_refers_to() -> None:
    money = json.dumps({"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]})
    text = json.dumps({"type": "record", "name": "shop.R", "fields": [{"name": "price", "type": "shop.Money"}]})
    made = Avro(Schema(AVRO, text, (("shop.Money", money),)))
    assert made.decode(made.encode({"price": {"cents": 5}})) == {"price": {"cents": 5}}


SCALE = 3
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("double", st.floats(allow_nan=False, allow_infinity=False).map(lambda number: Decimal(repr(number)))),
    ("string", st.text()),
    ({"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": SCALE},
     st.integers(-(10**20) + 1, 10**20 - 1).map(lambda number: Decimal(number).scaleb(-SCALE))),
    ({"type": "long", "logicalType": "timestamp-micros"},
     st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1), timezones=st.just(datetime.UTC)).map(lambda at: at.isoformat())),
    ({"type": "int", "logicalType": "date"}, st.dates().map(lambda day: day.isoformat())),
    ({"type": "long", "logicalType": "time-micros"}, st.times().map(lambda at: at.isoformat())),
    ({"type": "string", "logicalType": "uuid"}, st.uuids().map(str)),
]  # fmt: skip
Typed = tuple[Any, st.SearchStrategy[Any]]


def nested(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    def optional(one: Typed) -> Typed:
        already = isinstance(one[0], list)
        return one if already else (["null", one[0]], st.none() | one[1])

    arrays = inner.map(lambda one: ({"type": "array", "items": one[0]}, st.lists(one[1], max_size=3)))
    maps = inner.map(lambda one: ({"type": "map", "values": one[0]}, st.dictionaries(st.text(), one[1], max_size=3)))
    return arrays | maps | inner.map(optional)


@given(st.data())
def test_generated_values_of_generated_schemas_survive(data: st.DataObject) -> None:
    types = data.draw(
        st.lists(st.recursive(st.sampled_from(LEAVES), nested, max_leaves=4), min_size=1, max_size=5), label="types"
    )
    made = record(*({"name": f"f{at}", "type": kind} for at, (kind, _) in enumerate(types)))
    value = {f"f{at}": data.draw(some, label=f"f{at}") for at, (_, some) in enumerate(types)}
    again = made.decode(made.encode(value))
    read = json.loads(values.document(again), parse_float=Decimal)
    assert comparable(read) == comparable(value)
    assert made.encode(read) == made.encode(value)


def comparable(value: Any) -> Any:
    """Numbers by their value: 1.50 is 1.5."""
    if isinstance(value, dict):
        return {name: comparable(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [comparable(inner) for inner in value]
    return Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value
