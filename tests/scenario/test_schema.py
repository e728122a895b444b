"""The JSON Schema of a scenario describes every field and accepts every shipped scenario."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from onceproof.base.errors import UsageError
from onceproof.cli.app import app
from onceproof.cli.show.registries import listing, listing_of
from onceproof.faults.contract import faults
from onceproof.oracle import oracles
from onceproof.scenario_files import document
from onceproof.scenario_files.load import resolved
from onceproof.scenario_files.schema import schema_text
from onceproof.scenario_files.shipped import find, names

SCHEMA: dict[str, Any] = json.loads(schema_text())


def errors(schema: dict[str, Any], value: Any) -> Iterator[str]:
    """Each error of the validator: its path in ``value``, and the message."""
    for error in Draft202012Validator(schema).iter_errors(value):
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
        yield f"{path}: {error.message}"


def test_the_schema_is_itself_valid_and_names_its_dialect() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == Draft202012Validator.META_SCHEMA["$id"]


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
        ({"inputs": []}, "'inputs' was unexpected"),
        ({"claim": {"delivery": "exactly-once"}}, ".claim.delivery"),
        ({"pipeline": {}}, ".pipeline"),
        ({"expect": {"verdict": "hold"}}, ".expect.verdict: 'hold' is not one of"),
        ({"limits": {"deadline_s": "300"}}, ".limits.deadline_s: '300' is not of type 'number'"),
        ({"outputs": {"t": {"tabel": "t", "identity": ["id"]}}}, ".outputs.t"),
        ({"seed": "1"}, ".seed: '1' is not of type 'integer'"),
        (
            {"input": [{"topic": "t", "dataset": "numbers", "options": {"no": 1}}]},
            ".input[0].options: Additional properties are not allowed ('no' was unexpected)",
        ),
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
        ({"inputs": []}, "'inputs' was unexpected"),
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
    with pytest.raises(UsageError, match="there is no 'crsh' among the faults; did you mean 'crash'\\?"):
        listing_of("faults", "crsh", as_json=False)
    with pytest.raises(UsageError, match="points have no fields"):
        listing_of("points", "in-tasks", as_json=False)


def test_a_fault_is_listed_with_an_example_of_its_own_kind_of_pipeline() -> None:
    text = listing_of("faults", "crash-at-frame", as_json=False)
    assert "for example, in scenario " in text
    assert "  - {fault: crash-at-frame, target: driver, service: " in text and ", at: {batch: " in text
    for each in json.loads(listing_of("faults", "crash", as_json=True))["faults"]:
        of_batch = "at: {batch: " in each.get("example", "")
        assert "example" not in each or of_batch is not each["name"].endswith("(consumer)")


def test_the_list_of_faults_names_their_targets() -> None:
    abouts = {entry["name"]: entry["about"].lower() for entry in json.loads(listing("faults", as_json=True))["faults"]}
    assert all(
        word in abouts["crash"] for word in ("driver", "broker", "controller", "executor", "python worker", "postgres")
    )
    assert all(word in abouts["stall"] for word in ("driver", "broker", "controller", "task"))


def test_init_names_the_schema_for_editors_and_writes_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.py").write_text("")
    monkeypatch.chdir(tmp_path)
    words = ["init", "--topic", "orders", "--table", "booked", "--", "python", "job.py"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    first = Path("job.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=onceproof.schema.json"
    assert "wrote onceproof.schema.json" in done.output
    assert json.loads(Path("onceproof.schema.json").read_text()) == SCHEMA
    assert list(errors(SCHEMA, as_json(tmp_path / "job.yaml"))) == []
    Path("onceproof.schema.json").write_text("{}")
    assert CliRunner().invoke(app, [*words[:1], "--force", *words[1:]]).exit_code == 0
    assert Path("onceproof.schema.json").read_text() == "{}"
