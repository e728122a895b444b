"""Proposes to ignore the columns that differ between fault-free runs, and no others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onceproof.base.errors import UsageError
from onceproof.cli.app import app
from onceproof.judge.proposals import as_text, propose

Make = Callable[..., Path]


@pytest.fixture
def make(make_run: Any, tmp_path: Path) -> Make:
    """Makes a run that writes three rows to a table and to a topic; ``change(row)`` changes the rows."""
    made = []

    def run(change: Callable[[dict[str, Any]], dict[str, Any]] = dict, **scenario: Any) -> Path:
        run = make_run(tmp_path / f"run-{len(made)}")
        made.append(run)
        run.scenario["outputs"] = {
            "rows": {"table": "rows", "identity": ["k"]},
            "events": {"topic": "events", "identity": ["k"]},
        }
        run.scenario |= scenario
        outputs = run.scenario["outputs"]
        run.scenario["oracle"] = {"kind": "sql", "queries": dict.fromkeys(outputs, 'SELECT k, n FROM "in"')}
        for n, key in enumerate("abc"):
            run.send(key, {"k": key, "n": n})
            row = change({"k": key, "n": n, "at": "10:00"})
            if "rows" in outputs:
                run.insert("rows", row)
            run.record("events", row)
        run.progress({0: 3})
        return run.save()

    return run


def test_runs_that_agree_give_no_proposal(make: Make) -> None:
    assert propose([make(), make()]) == ()
    assert as_text((), 2) == "# nothing differs between these 2 fault-free runs\n"


def test_a_load_time_is_proposed_with_an_example(make: Make) -> None:
    rows, events = propose([make(), make(lambda row: {**row, "at": "10:05"}), make()])
    assert (rows.output, rows.ignore) == ("rows", ("at",))
    (column,) = rows.differences.columns
    assert (column.column, column.effects) == ("at", 3)
    assert column.example == """{"k":"a"}: '10:00' and '10:05'"""
    assert events.ignore == ("at",)


def test_columns_that_are_ignored_already_stay_in_the_proposal(make: Make) -> None:
    outputs = {"events": {"topic": "events", "identity": ["k"], "ignore": ["at"]}}

    def other(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "at": "10:05", "n": row["n"] + (row["k"] == "b")}

    (proposal,) = propose([make(outputs=outputs), make(other, outputs=outputs)])
    assert proposal.ignore == ("at", "n")
    (column,) = proposal.differences.columns
    assert (column.effects, column.example) == (1, """{"k":"b"}: '1' and '2'""")


def test_only_compared_columns_are_proposed(make: Make) -> None:
    outputs = {"events": {"topic": "events", "identity": ["k"], "compare": ["n"]}}
    assert propose([make(outputs=outputs), make(lambda row: {**row, "at": "10:05"}, outputs=outputs)]) == ()


def test_a_generated_identity_is_reported_without_a_proposal(make: Make) -> None:
    rows, _ = propose([make(), make(lambda row: {**row, "k": row["k"] + "'"})])
    assert rows.ignore == ()
    assert (rows.differences.unmatched, rows.differences.unmatched_example) == (6, '{"k":"a"}')
    assert "identity: does it name a generated column?" in as_text((rows,), 2)


def test_a_column_that_one_run_lacks_differs(make: Make) -> None:
    proposals = propose([make(), make(lambda row: {k: v for k, v in row.items() if k != "at"})])
    assert {p.ignore for p in proposals} == {("at",)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chaos": [{"fault": "crash"}]}, "is a run with faults"),
        ({"name": "other"}, "are runs of different scenarios: name differs"),
        ({"pipeline": {"command": ["other"]}}, "are runs of different scenarios: pipeline differs"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(make: Make, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        propose([make(), make(**change)])


def test_runs_with_other_chunks_are_of_the_same_scenario(make: Make) -> None:
    chunked = [{"topic": "in", "dataset": "numbers", "chunks": 3}]
    assert propose([make(), make(input=chunked)]) == ()


def test_runs_with_faults_other_input_or_no_drain_and_single_runs_are_refused(make: Make, make_run: Any) -> None:
    clean, second = make(), make()
    for damage, message in (
        (lambda run: run.fault(batch=1), "is a run with faults"),
        (lambda run: run.send("d", {"k": "d"}), "not fed the same committed input"),
        (lambda run: run.document.update(drained=False), "did not drain"),
    ):
        other = make_run(second.with_name(f"damaged-{len(message)}"))
        other.scenario = json.loads((second / "run.json").read_text())["scenario"]
        for n, key in enumerate("abc"):
            other.send(key, {"k": key, "n": n})
        damage(other)
        with pytest.raises(UsageError, match=message):
            propose([clean, other.save()])
    with pytest.raises(UsageError, match="one run shows no difference"):
        propose([clean])


def test_the_command_prints_yaml_for_the_scenario(make: Make) -> None:
    runs = [str(make()), str(make(lambda row: {**row, "at": "10:05"}))]
    result = CliRunner().invoke(app, ["propose", *runs])
    assert result.exit_code == 0
    assert "  rows:\n    # column at differs in 3 rows" in result.stdout
    assert "    ignore: [at]\n" in result.stdout
    asked = CliRunner().invoke(app, ["propose", "--json", *runs])
    assert [p["ignore"] for p in json.loads(asked.stdout)["proposals"]] == [["at"], ["at"]]
    assert CliRunner().invoke(app, ["propose", runs[0]]).exit_code == 2
