"""The JSON Schema of a scenario describes every field and accepts every shipped scenario."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceproof.base.errors import UsageError
from onceproof.cli.show import listing, listing_of, schema_text
from onceproof.faults.contract import faults
from onceproof.oracle import oracles
from onceproof.scenario_files import document
from onceproof.scenario_files.load import find, names, resolved

SCHEMA: dict[str, Any] = json.loads(schema_text())


def errors(schema: dict[str, Any], value: Any, where: str = "") -> Iterator[str]:
    """The errors that a JSON Schema validator would report, for the keywords that this schema uses."""
    unknown = schema.keys() - {
        *(
            "$schema",
            "$defs",
            "title",
            "description",
            "default",
            "examples",
            "format",
            "propertyNames",
            "minimum",
            "maximum",
        ),
        *(
            "exclusiveMinimum",
            "exclusiveMaximum",
            "minItems",
            "minProperties",
            "maxProperties",
            "minLength",
            "maxLength",
            "maxItems",
        ),
        *(
            "$ref",
            "anyOf",
            "allOf",
            "if",
            "then",
            "else",
            "type",
            "enum",
            "const",
            "pattern",
            "properties",
            "required",
            "items",
        ),
        "additionalProperties",
    }
    assert not unknown, f"this test does not know {unknown}"
    if "$ref" in schema:
        yield from errors(SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], value, where)
    if "anyOf" in schema and not any(not list(errors(each, value, where)) for each in schema["anyOf"]):
        yield f"{where}: {value!r} is none of {len(schema['anyOf'])}"
    for each in schema.get("allOf", ()):
        yield from errors(each, value, where)
    if "if" in schema:
        holds = not list(errors(schema["if"], value, where))
        yield from errors(schema.get("then" if holds else "else", {}), value, where)
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is not one of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        yield f"{where}: {value!r} is not {schema['const']!r}"
    if "pattern" in schema and not re.search(schema["pattern"], str(value)):
        yield f"{where}: {value!r} does not match"
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
    kind = schema.get("type")
    if kind == "null" and value is not None:
        yield f"{where}: {value!r} is not null"
    if kind in kinds and not (isinstance(value, kinds[kind]) and (kind == "boolean" or not isinstance(value, bool))):
        yield f"{where}: {value!r} is not of type {kind}"
    if isinstance(value, dict):
        known = schema.get("properties", {})
        yield from (f"{where}: {name} is missing" for name in schema.get("required", ()) if name not in value)
        for name, inner in value.items():
            if name in known:
                yield from errors(known[name], inner, f"{where}.{name}")
            elif schema.get("additionalProperties") is False:
                yield f"{where}: {name} is unknown"
            elif isinstance(schema.get("additionalProperties"), dict):
                yield from errors(schema["additionalProperties"], inner, f"{where}.{name}")
    if isinstance(value, list) and "items" in schema:
        for index, inner in enumerate(value):
            yield from errors(schema["items"], inner, f"{where}[{index}]")


def as_json(path: Path) -> Any:
    """A scenario's document, with keys and dates as in JSON."""
    return json.loads(json.dumps(document.read(path).data, default=str))


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, Any]:
    """A scenario without a base."""
    path = tmp_path / "whole.yaml"
    path.write_text(resolved(find("effectively-once")))
    document: dict[str, Any] = as_json(path)
    return document


@pytest.mark.parametrize("name", names())
def test_the_schema_accepts_every_shipped_scenario(name: str) -> None:
    assert list(errors(SCHEMA, as_json(find(name)))) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"chaos": [{"fault": "crsh", "target": "driver", "at": {"batch": 1, "point": "in-tasks"}}]}, ".chaos[0]"),
        ({"oracle": {"kind": "sql"}}, ".oracle"),
        ({"inputs": []}, "inputs is unknown"),
        ({"claim": {"delivery": "exactly-once"}}, ".claim.delivery"),
        ({"pipeline": {}}, ".pipeline"),
        ({"input": [{"topic": "t", "dataset": "numbers", "options": {"no": 1}}]}, ".input[0].options: no is unknown"),
    ],
)
def test_the_schema_refuses_wrong_values(whole: dict[str, Any], changes: dict[str, Any], expected: str) -> None:
    assert list(errors(SCHEMA, whole)) == []
    assert any(expected in error for error in errors(SCHEMA, {**whole, **changes}))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"pipeline": {"args": {"acks": 1, "fast": True, "planes": None}}}, ""),
        ({"outputs": {"departures_topic": None, "departures_table": {"ignore": ["model"]}}}, ""),
        ({"stack": {"postgres": None}, "oracle": {"queries": {"departures_topic": None}}, "chaos": None}, ""),
        ({"claim": {"order": "per-kye"}}, ".claim"),
        ({"pipeline": {"args": {"acks": 1.5}}}, ".pipeline"),
        ({"chaos": [{"fault": "crash", "target": "driver", "at": {"batch": 1, "point": None}}]}, ".chaos"),
        ({"inputs": []}, "inputs is unknown"),
        ({"base": 5}, ".base"),
    ],
)
def test_with_a_base_no_key_is_required_and_null_is_allowed(changes: dict[str, Any], expected: str) -> None:
    found = list(errors(SCHEMA, {"base": "effectively-once", **changes}))
    assert any(expected in error for error in found) if expected else found == []


def test_every_field_is_described() -> None:
    undescribed = [
        f"{owner}.{name}"
        for owner, model in SCHEMA["$defs"].items()
        for name, field in model.get("properties", {}).items()
        if not field.get("description")
    ]
    assert undescribed == []


def test_the_schema_has_every_kind() -> None:
    text = json.dumps(SCHEMA)
    for name in [*faults.names(), *(kind for kind in oracles.names() if kind != "slice")]:
        assert f'"const": "{name}"' in text


def test_the_fields_of_a_kind_are_listed() -> None:
    text = listing_of("faults", "crash", as_json=False)
    assert "crash (consumer)" in text and "leader_of" in text
    for target in ("driver", "broker", "executor", "python-worker", "controller", "postgres", "postgres-backend"):
        assert target in text
    (sql,) = json.loads(listing_of("oracles", "sql", as_json=True))["oracles"]
    assert sql["fields"]["queries"].startswith("output -> SELECT over the input")
    with pytest.raises(UsageError, match="there is no 'crsh' among the faults; did you mean 'crash'"):
        listing_of("faults", "crsh", as_json=False)
    with pytest.raises(UsageError, match="points have no fields"):
        listing_of("points", "in-tasks", as_json=False)


def test_the_list_of_faults_names_their_targets() -> None:
    abouts = {entry["name"]: entry["about"].lower() for entry in json.loads(listing("faults", as_json=True))["faults"]}
    assert all(
        word in abouts["crash"] for word in ("driver", "broker", "controller", "executor", "python worker", "postgres")
    )
    assert all(word in abouts["stall"] for word in ("driver", "broker", "controller", "task"))
