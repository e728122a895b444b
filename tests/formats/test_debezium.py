"""Debezium's change events, with and without Connect's schema."""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

from onceproof.formats import debezium


def number(unscaled: int, size: int = 8) -> str:
    return base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()


def field(name: str, kind: str, logical: str | None = None, **parameters: str) -> dict[str, Any]:
    return {"field": name, "type": kind, "optional": True, "name": logical, "parameters": parameters}


ROW = {
    "type": "struct",
    "fields": [
        field("id", "int64"),
        field("amount", "bytes", "org.apache.kafka.connect.data.Decimal", scale="2"),
        field("at", "int64", "io.debezium.time.MicroTimestamp"),
        field("seen", "int64", "org.apache.kafka.connect.data.Timestamp"),
        field("day", "int32", "io.debezium.time.Date"),
        field("opens", "int64", "io.debezium.time.MicroTime"),
        {**field("any", "struct", "io.debezium.data.VariableScaleDecimal")},
    ],
}
SCHEMA = {"type": "struct", "fields": [{**ROW, "field": "before"}, {**ROW, "field": "after"}, field("op", "string")]}
AFTER = {
    "id": 1,
    "amount": number(-12345),
    "at": 1_000_001,
    "seen": 1_001,
    "day": 1,
    "opens": 1,
    "any": {"scale": 3, "value": number(5)},
}


def test_the_schema_around_an_event_gives_its_fields_types() -> None:
    event, types = debezium.unwrapped({"schema": SCHEMA, "payload": {"before": None, "after": AFTER, "op": "c"}})
    assert event["after"] == {
        "id": 1,
        "amount": Decimal("-123.45"),
        "at": datetime(1970, 1, 1, 0, 0, 1, 1),
        "seen": datetime(1970, 1, 1, 0, 0, 1, 1000, tzinfo=UTC),
        "day": date(1970, 1, 2),
        "opens": time(0, 0, 0, 1),
        "any": Decimal("0.005"),
    }
    assert types["after", "amount"] == "DECIMAL(38,2)" and types["before", "at"] == "TIMESTAMP"
    assert types["after", "seen"] == "TIMESTAMP WITH TIME ZONE" and types["after", "day"] == "DATE"


def test_an_event_without_schema_stays_as_it_is() -> None:
    plain = {"before": None, "after": {"id": 1}, "op": "c"}
    assert debezium.unwrapped(plain) == (plain, {})
    assert debezium.checked(plain) == plain


def test_what_a_change_leaves_in_an_output() -> None:
    before, after = {"id": 1, "n": 1}, {"id": 1, "n": 2}
    for operation, old, left in (("c", None, after), ("u", before, after), ("r", None, after)):
        event = {"before": old, "after": after, "op": operation}
        assert debezium.row_of(event, keep_operation=False) == left
        assert debezium.row_of(event, keep_operation=True) == {**left, "__op": operation}
    gone = {"before": before, "after": None, "op": "d"}
    assert debezium.row_of(gone, keep_operation=False) is None
    assert debezium.row_of(gone, keep_operation=True) == {**before, "__op": "d"}


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ([], "not a change event but a list"),
        ({"op": "x", "after": {}}, "its op is 'x'"),
        ({"id": 1}, "its op is None"),
        ({"op": "u"}, "neither before nor after"),
    ],
)
def test_a_value_that_is_not_a_change_event_is_refused(event: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        debezium.checked(event)


def test_a_change_without_its_row_is_refused() -> None:
    for event in ({"op": "t"}, {"op": "u", "after": None}, {"op": "d", "before": None}):
        with pytest.raises(ValueError, match="has no row"):
            debezium.row_of(event, keep_operation=True)


def test_a_field_of_another_type_than_its_schema_says_is_named() -> None:
    wrong = {"schema": SCHEMA, "payload": {"after": {**AFTER, "day": "soon"}, "op": "c"}}
    with pytest.raises(ValueError, match=r"field payload.after.day: 'soon' is not a io.debezium.time.Date"):
        debezium.unwrapped(wrong)


@pytest.mark.parametrize(
    ("field_", "value", "why"),
    [
        ("at", Decimal("1.9"), "not a whole number"),
        ("at", True, "not a whole number"),
        ("day", "1", "not a whole number"),
        ("amount", "A$Q==", "base64"),
        ("amount", number(10**38, 17), "more than 38 digits"),
        ("any", {"scale": 3, "value": "A$Q=="}, "base64"),
    ],
)
def test_a_value_that_would_become_another_one_is_refused(field_: str, value: Any, why: str) -> None:
    """Or none at all: a column holds NULL for a number with too many digits."""
    wrong = {"schema": SCHEMA, "payload": {"after": {**AFTER, field_: value}, "op": "c"}}
    with pytest.raises(ValueError, match=rf"field payload\.after\.{field_}: .*{why}"):
        debezium.unwrapped(wrong)


def test_the_feed_makes_events_of_rows_and_of_changes() -> None:
    row = {"id": 1}
    assert debezium.envelope_of(row, 5) == {"before": None, "after": row, "op": "c", "ts_ms": 5}
    for before, after, operation in ((None, row, "c"), (row, row, "u"), (row, None, "d")):
        assert debezium.envelope_of({"before": before, "after": after}, 5)["op"] == operation
    for wrong in ([], {"before": None, "after": None}):
        with pytest.raises(ValueError):
            debezium.envelope_of(wrong, 5)
