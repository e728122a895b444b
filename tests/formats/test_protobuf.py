"""Protobuf: a .proto file is compiled, and its messages survive the way into bytes and back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceproof.base.errors import UsageError
from onceproof.formats import values
from onceproof.formats.protobuf import Protobuf
from onceproof.formats.registry import PROTOBUF, Schema

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum State { OPEN = 0; PAID = 1; }
message Envelope {
  message Inner { string text = 1; }
  Inner inner = 1;
}
message Order {
  int64 id = 1;
  uint64 big = 2;
  string amount = 3;
  State state = 4;
  google.protobuf.Timestamp at = 5;
  repeated int32 parts = 6;
  map<string, double> tags = 7;
  optional string note = 8;
  float weight = 9;
  bytes raw = 10;
  oneof paid { string card = 11; int64 cash = 12; }
  google.protobuf.Int64Value maybe = 13;
  Order above = 14;
  bool open = 15;
}
"""
NEWER = ORDER.replace("bool open = 15;", "bool open = 15; string city = 16;")
VALUE: dict[str, Any] = {
    "id": -(2**63),
    "big": 2**64 - 1,
    "amount": "1.10",
    "state": "PAID",
    "at": "2026-01-02T03:04:05.000006Z",
    "parts": [1, 2],
    "tags": {"a": 0.5},
    "weight": 0.1,
    "raw": "AP8=",
    "cash": 5,
    "above": {"id": 1},
    "open": True,
}


@pytest.fixture(scope="module")
def order() -> Protobuf:
    return Protobuf(Schema(PROTOBUF, ORDER), "shop.Order")


def test_every_type_survives(order: Protobuf) -> None:
    found = order.decode(order.encode(VALUE))
    assert found["at"] == datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    read = json.loads(values.document(found), parse_float=Decimal)
    assert read == {
        **VALUE,
        "at": "2026-01-02T03:04:05.000006+00:00",
        "tags": {"a": Decimal("0.5")},
        "weight": Decimal("0.1"),
        "note": None,
        "card": None,
        "maybe": None,
        "above": {**read["above"], "id": 1, "at": None, "parts": [], "state": "OPEN"},
    }
    assert order.types()["at",] == "TIMESTAMP WITH TIME ZONE" and order.types()["weight",] == "FLOAT"


def test_unknown_fields_of_a_newer_writer_are_left_out(order: Protobuf) -> None:
    newer = Protobuf(Schema(PROTOBUF, NEWER), "shop.Order")
    body = newer.encode({"id": 1, "city": "Ulm"})
    assert "city" not in order.decode(body) and newer.decode(body)["city"] == "Ulm"
    assert newer.decode(order.encode({"id": 1}))["city"] == ""


def test_messages_are_found_by_their_indexes(order: Protobuf) -> None:
    assert (order.at((0,)), order.at((0, 0)), order.at((1,))) == ("shop.Envelope", "shop.Envelope.Inner", "shop.Order")
    assert order.indexes() == [1]
    inner = Protobuf(Schema(PROTOBUF, ORDER), "shop.Envelope.Inner")
    assert inner.indexes() == [0, 0]
    with pytest.raises(ValueError, match="lead to no message"):
        order.at((7,))


def test_what_cannot_be_read_is_refused(order: Protobuf) -> None:
    with pytest.raises(ValueError, match=r"not a message shop\.Order"):
        order.decode(b"\x08")
    with pytest.raises(ValueError, match=r"not a message shop\.Order"):
        order.encode({"id": "many"})
    with pytest.raises(ValueError, match="nanoseconds"):
        order.decode(order.encode({"at": "2026-01-02T03:04:05.000000006Z"}))
    with pytest.raises(UsageError, match=r"no message 'shop.Ordr'(.|\n)*it has shop.Envelope"):
        Protobuf(Schema(PROTOBUF, ORDER), "shop.Ordr")
    with pytest.raises(UsageError, match=r"is not a .proto file(.|\n)*schema.proto:1"):
        Protobuf(Schema(PROTOBUF, "message {"))


def test_a_file_uses_those_that_it_refers_to() -> None:
    money = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'
    text = 'syntax = "proto3"; import "shop/money.proto"; message R { shop.Money price = 1; }'
    made = Protobuf(Schema(PROTOBUF, text, (("shop/money.proto", money),)))
    assert made.message == "R" and made.decode(made.encode({"price": {"cents": 5}})) == {"price": {"cents": 5}}
    with pytest.raises(UsageError, match="not a path below"):
        Protobuf(Schema(PROTOBUF, text, (("../../money.proto", money),)))


@given(
    st.fixed_dictionaries(
        {
            "id": st.integers(-(2**63), 2**63 - 1),
            "big": st.integers(0, 2**64 - 1),
            "amount": st.text(),
            "state": st.sampled_from(["OPEN", "PAID"]),
            "parts": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
            "tags": st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False), max_size=3),
            "weight": st.floats(width=32, allow_nan=False, allow_infinity=False),
            "open": st.booleans(),
        }
    )
)
def test_generated_messages_survive(order: Protobuf, value: dict[str, Any]) -> None:
    body = order.encode(value)
    read = json.loads(values.document(order.decode(body)))
    assert order.encode(read) == body
    assert {name: read[name] for name in value if name != "weight"} == {n: v for n, v in value.items() if n != "weight"}
