"""JSON Schema: values are checked and keep their digits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.base.errors import UsageError
from onceproof.formats import values
from onceproof.formats.json_schema import JsonSchema
from onceproof.formats.registry import JSON, Schema

ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "amount": {"type": "number", "multipleOf": 0.01}},
    "required": ["id"],
    "additionalProperties": False,
}


def made(schema: Any, references: tuple[tuple[str, str], ...] = ()) -> JsonSchema:
    return JsonSchema(Schema(JSON, json.dumps(schema), references))


def test_a_valid_value_keeps_its_digits() -> None:
    text = b'{"id":12345678901234567890,"amount":1234567890123456789.10}'
    assert values.document(made(ORDER).decode(text)).encode() == text
    assert made(ORDER).encode(text) == text
    assert made(ORDER).decode(b'{"id": 1.0}') == {"id": 1}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b'{"id": "1"}', "field id: '1' is not of type 'integer'"),
        (b'{"id": 1.5}', "is not of type 'integer'"),
        (b'{"id": 1, "amount": 0.001}', "field amount"),
        (b'{"id": 1, "x": 2}', "'x' was unexpected"),
        (b"{}", "'id' is a required property"),
        (b"{", "Expecting"),
        (b'{"id": 1, "amount": NaN}', "NaN is not JSON"),
        (b'{"id": 1, "amount": -Infinity}', "-Infinity is not JSON"),
    ],
)
def test_an_invalid_value_names_the_field(value: bytes, why: str) -> None:
    with pytest.raises(ValueError) as found:
        made(ORDER).decode(value)
    assert why in str(found.value)


def test_references_are_found_and_never_fetched() -> None:
    schema = {"type": "object", "properties": {"price": {"$ref": "money.json"}}}
    known = made(schema, (("money.json", json.dumps({"type": "number"})),))
    assert known.decode(b'{"price": 1}') == {"price": 1}
    with pytest.raises(ValueError, match=r"refers to 'money.json'"):
        made(schema).decode(b'{"price": 1}')


def test_a_text_that_is_not_a_schema_is_refused() -> None:
    for text in ("{", '{"type": "objekt"}', '{"properties": 1}'):
        with pytest.raises(UsageError, match="is not a JSON Schema"):
            JsonSchema(Schema(JSON, text))
