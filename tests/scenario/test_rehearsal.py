"""Warnings about an oracle's queries, which `validate` and `plan` find by preparing them over the data set's columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onceproof.base.errors import ScenarioError
from onceproof.cli.app import app
from onceproof.cli.show.plan import planned
from onceproof.cli.show.validate import validated
from onceproof.scenario_files.load import load_file, warnings
from onceproof.scenario_files.shipped import find

SCENARIO: dict[str, Any] = {
    "stack": {"postgres": {}},
    "input": [{"topic": "orders", "dataset": "file", "options": {"file": "{here}/orders.jsonl"}, "chunks": 1}],
    "pipeline": {"command": ["{python}", "-V", "{checkpoint}"], "prepare": {"topics": {"events": {}}}},
    "outputs": {"events": {"topic": "events", "identity": ["id"]}},
    "oracle": {"kind": "sql", "queries": {"events": "SELECT id, amount FROM orders"}},
}


def warnings_of(folder: Path, **changes: Any) -> list[tuple[int, str]]:
    """Line and message of each warning; the scenario is written as JSON, one line per key."""
    (folder / "orders.jsonl").write_text(
        '{"id": 1, "amount": 1.5, "placed": "2024-01-01"}\n{"id": 2, "amount": 2, "placed": null}\n'
    )
    path = folder / "job.yaml"
    path.write_text(json.dumps({**SCENARIO, **changes}, indent=1))
    try:
        found = warnings(load_file(path))
    except ScenarioError as refused:  # the sample is complete, so a query that cannot be prepared cannot be run
        found = refused.problems
    return [(problem.place.line, problem.message) for problem in found]


def sql(query: str, **more: Any) -> dict[str, Any]:
    return {"kind": "sql", "queries": {"events": query}, **more}


def test_a_query_that_can_be_run_gets_no_warning(tmp_path: Path) -> None:
    assert warnings_of(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        (
            {"outputs": {"events": {"topic": "events", "identity": ["order_id"]}}},
            ["has no column 'order_id', which is part of its identity; it has id, amount"],
        ),
        (
            {"outputs": {"events": {"topic": "events", "identity": ["id"], "compare": ["price"]}}},
            ["has no column 'price', which the output wants compared; it has id, amount"],
        ),
        (
            {"oracle": sql("SELECT id, amout FROM orders")},
            ['Referenced column "amout" not found in FROM clause! Candidate'],
        ),
        ({"oracle": sql("SELECT id FROM order_s")}, ["Table with name order_s does not exist"]),
        ({"oracle": sql("SELECT id, upper(amount + 1, 2) FROM orders")}, ["No function matches the given name"]),
        ({"oracle": sql("SELECT id, amount + placed FROM orders")}, ["No function matches"]),
        ({"oracle": sql("FROM '{here}/x.parquet'")}, ["file system operations are disabled"]),
        (
            {"oracle": sql("SELECT id, _offset FROM orders")},
            ["selects only one of _partition and _offset; it needs both"],
        ),
        (
            {"oracle": sql("SELECT id, first(placed) FROM orders GROUP BY id")},
            ["`first(placed)` (line 1) takes an arbitrary row"],
        ),
        (
            {"oracle": {"kind": "identity", "columns": {"events": {"id": "ident"}}}},
            ['Referenced column "ident" not found in FROM clause'],
        ),
        (
            {"oracle": {"kind": "identity", "columns": {"events": {"id": "(SELECT any_value(id) FROM orders)"}}}},
            ["`any_value(id)` (line 1) takes an arbitrary row"],
        ),
        (
            {"oracle": sql("SELECT id FROM orders", windows={"orders": {"closes": "att"}})},
            ['oracle: windows: orders: Binder Error: Referenced column "att" not found'],
        ),
        (
            {"oracle": {"kind": "reference", "chunks": [1, 2], "anchor": sql("SELECT ident FROM orders")}},
            ['Referenced column "ident" not found in FROM clause'],
        ),
    ],
)
def test_an_error_of_a_query_is_warned_of_with_its_line(
    tmp_path: Path, changes: dict[str, Any], messages: list[str]
) -> None:
    found = warnings_of(tmp_path, **changes)
    assert len(found) == len(messages), found
    lines = (tmp_path / "job.yaml").read_text().splitlines()
    for (line, message), expected in zip(found, messages, strict=True):
        assert expected in message
        assert '"oracle"' in "\n".join(lines[:line])  # somewhere below the oracle


def test_fields_of_closing_records_at_the_end_are_sampled(tmp_path: Path) -> None:
    rows = [{"id": number} for number in range(5_000)] + [{"id": 5_000, "closing": True}]
    file = tmp_path / "many.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    inputs = [{"topic": "orders", "dataset": "file", "options": {"file": str(file)}}]
    assert warnings_of(tmp_path, input=inputs, oracle=sql("SELECT id FROM orders WHERE closing IS NULL")) == []
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({**SCENARIO, "input": inputs, "oracle": sql("SELECT id FROM orders WHERE open")}))
    (warning,) = warnings(load_file(path))
    assert warning.hint == "checked against the first 2,000 and the last 200 of the 5,001 records of orders"


def test_a_misspelt_input_file_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as refused:
        warnings_of(
            tmp_path, input=[{**SCENARIO["input"][0], "options": {"file": "{here}/order.jsonl", "form": "values"}}]
        )
        load_file(tmp_path / "job.yaml")
    (problem,) = refused.value.problems
    assert problem.message == f"file '{tmp_path}/order.jsonl' does not exist"
    assert problem.hint == "did you mean 'orders.jsonl'?"


def test_a_topic_that_a_function_decodes_is_not_checked(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("def decode(value): return {}")
    inputs = [{**SCENARIO["input"][0], "decode": "{here}/code.py:decode"}]
    assert warnings_of(tmp_path, input=inputs, oracle=sql("SELECT whatever FROM orders")) == []


def test_plan_and_validate_print_the_warnings(tmp_path: Path) -> None:
    warnings_of(tmp_path, oracle=sql("SELECT id FROM orders LIMIT 1"))
    name = str(tmp_path / "job.yaml")
    for text in (validated([name], as_json=False), planned(name, as_json=False)):
        assert f"{name}:" in text and ": warning: " in text and "`LIMIT` (line 1)" in text
    for text in (validated([name], as_json=True), planned(name, as_json=True)):
        (warning,) = json.loads(text)["warnings"]
        assert "LIMIT" in warning["message"] and warning["place"]["line"] > 1


@pytest.mark.parametrize("command", ["validate", "plan", "run"])
def test_a_column_that_no_record_has_is_an_error_with_the_nearest_name(tmp_path: Path, command: str) -> None:
    warnings_of(tmp_path, oracle=sql("SELECT id, amout FROM orders"))
    done = CliRunner().invoke(app, [command, str(tmp_path / "job.yaml")])
    assert done.exit_code == 2
    assert 'Referenced column "amout" not found' in done.stderr
    assert "did you mean 'amount'?" in done.stderr


def test_a_column_that_a_record_outside_the_sample_may_have_is_a_warning(tmp_path: Path) -> None:
    """So it is if another producer writes records that the run does not feed."""
    (tmp_path / "more.jsonl").write_text("".join(f'{{"id": {number}}}\n' for number in range(9)))
    options = {"dataset": "file", "options": {"file": "{here}/more.jsonl"}}
    path = tmp_path / "job.yaml"
    aborted = {
        "fault": "aborted-input",
        "target": "input",
        "at": {"batch": 1, "point": "after-offset-log"},
        "records": 1,
    }
    changes = {
        "input": [{"topic": "orders", **options, "rows": 4, "chunks": 4}],
        "oracle": sql("SELECT id, note FROM orders"),
    }
    path.write_text(json.dumps({**SCENARIO, **changes, "chaos": [aborted]}))
    (warning,) = warnings(load_file(path))
    assert 'Referenced column "note" not found' in warning.message


@pytest.mark.parametrize("name", ["flights-with-weather", "plane-sessions", "effectively-once"])
def test_shipped_scenarios_get_no_warnings(name: str) -> None:
    assert warnings(load_file(find(name))) == []
