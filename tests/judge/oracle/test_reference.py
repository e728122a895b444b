"""Oracle ``reference``: fault-free runs that agree give what the outputs must hold; runs that differ give nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceproof.history.run_directory import RunDir
from onceproof.judge.open import open_case
from onceproof.judge.verdict import judge
from onceproof.oracle.reference import ReferenceOracle, ReferenceSpec
from onceproof.scenario.model import Scenario

QUERY = 'SELECT k, n FROM "in"'


def fill(run: Any, change: Callable[[dict[str, Any]], dict[str, Any]] = dict, **oracle: Any) -> Any:
    """Write three records to a table and a topic."""
    run.scenario["outputs"] = {
        "rows": {"table": "rows", "identity": ["k"], "kind": "upsert"},
        "events": {"topic": "events", "identity": ["k"]},
    }
    run.scenario["oracle"] = {"kind": "reference", "chunks": [2, 3], **oracle}
    for n, key in enumerate("abc"):
        run.send(key, {"k": key, "n": n})
        row = change({"k": key, "n": n})
        run.insert("rows", row)
        run.record("events", row)
    run.progress({0: 3})
    return run


@pytest.fixture
def observe(make_run: Any) -> Any:
    """Replaces a real run: writes the stored run that ``runs`` has for a number of chunks."""

    def with_runs(**runs: Any) -> Callable[[Scenario, Path], RunDir]:
        def observed(scenario: Scenario, where: Path) -> RunDir:
            assert scenario.chaos == []
            run = make_run(where)
            run.scenario["input"][0]["chunks"] = scenario.input[0].chunks
            runs[f"chunks{scenario.input[0].chunks}"](run)
            path = run.save()
            directory = RunDir(path)
            directory.update(**json.loads((path / "run.json").read_text()))
            return directory

        return observed

    return with_runs


def test_fault_free_runs_that_agree_give_the_expected_rows(stored_run: Any, ask: Any, observe: Any) -> None:
    verdict = judge(ask(fill(stored_run), observe(chunks2=fill, chunks3=fill)))
    assert verdict.outcome == "held"
    assert "relative to its own fault-free run" in verdict.reasons[0]


@pytest.mark.parametrize("output", ["rows", "events"])
def test_changes_in_the_run_with_faults_are_found(stored_run: Any, ask: Any, observe: Any, output: str) -> None:
    run = fill(stored_run)
    changed = [row for row in run.tables["output"] if row["output"] == output]
    changed[1]["content"] = changed[1]["content"].replace("1", "7")
    verdict = judge(ask(run, observe(chunks2=fill, chunks3=fill)))
    assert {(f.anomaly, f.output, f.total) for f in verdict.findings if f.anomaly == "wrong-value"} == {
        ("wrong-value", output, 1)
    }
    assert "the output was judged relative to its own fault-free run" in verdict.reasons


def test_runs_that_disagree_are_inconclusive_and_propose_what_to_ignore(
    stored_run: Any, ask: Any, observe: Any
) -> None:
    def other(run: Any) -> None:
        fill(run, lambda row: {**row, "n": row["n"] + 10})

    verdict = judge(ask(fill(stored_run), observe(chunks2=fill, chunks3=other)))
    assert verdict.outcome == "inconclusive"
    (reason,) = [reason for reason in verdict.reasons if "disagree" in reason]
    assert reason.startswith("oracle: reference: the fault-free runs in 2 and 3 chunks disagree")
    assert """output rows: column n differs in 3 rows, e.g. {"k":"a"}: '0' and '10'""" in reason
    assert "outputs: rows: ignore: [n]" in reason


def test_an_anchor_decides_if_fault_free_runs_disagree(stored_run: Any, ask: Any, observe: Any) -> None:
    def other(run: Any) -> None:
        fill(run, lambda row: {**row, "n": row["n"] + 10})

    anchor = {"kind": "sql", "queries": {"rows": QUERY, "events": QUERY}}
    verdict = judge(ask(fill(stored_run, anchor=anchor), observe(chunks2=fill, chunks3=other)))
    assert verdict.outcome == "held"
    assert "by the anchor of its oracle, because its fault-free runs in 2 and 3 chunks disagree" in verdict.reasons[0]


def test_the_source_columns_of_the_output_give_the_cause(stored_run: Any, ask: Any, observe: Any) -> None:
    def sourced(run: Any) -> Any:
        fill(run, lambda row: {**row, "p": 0, "o": "abc".index(row["k"])})
        run.scenario["outputs"]["events"]["source"] = {"partition": "p", "offset": "o"}
        return run

    with open_case(ask(sourced(stored_run), observe(chunks2=sourced, chunks3=sourced))) as case:
        assert case.expectations["events"].has_cause
        causes = case.rows("""SELECT "offset", "key" FROM judge.expected WHERE output = 'events' ORDER BY 1""")
    assert causes == [{"offset": n, "key": key} for n, key in enumerate("abc")]


def test_a_fault_free_run_that_fails_is_inconclusive_with_its_error(stored_run: Any, ask: Any, observe: Any) -> None:
    def failing(run: Any) -> None:
        fill(run)
        run.document |= {"drained": False, "drain_note": "no progress for 60 s", "job": {"traceback": "Boom: at once"}}

    verdict = judge(ask(fill(stored_run), observe(chunks2=fill, chunks3=failing)))
    assert verdict.outcome == "inconclusive"
    (reason,) = [reason for reason in verdict.reasons if "oracle: reference" in reason]
    assert "the fault-free run in 3 chunks failed: no progress for 60 s\nBoom: at once" in reason


def test_a_run_with_other_input_is_not_a_reference(stored_run: Any, ask: Any, observe: Any) -> None:
    def longer(run: Any) -> None:
        fill(run).send("d", {"k": "d", "n": 3})

    verdict = judge(ask(fill(stored_run), observe(chunks2=longer, chunks3=fill)))
    assert any("in 2 chunks was not fed the same input" in reason for reason in verdict.reasons)
    assert verdict.outcome == "inconclusive"


@pytest.mark.parametrize(
    ("spec", "outputs", "message"),
    [
        ({"chunks": [4, 4]}, {}, "occurs twice"),
        ({}, {"kind": "changelog"}, "is a changelog"),
        ({"anchor": {"kind": "sql", "queries": {"oot": "SELECT 1"}}}, {}, "no output 'oot'"),
    ],
)
def test_validate(spec: dict[str, Any], outputs: dict[str, Any], message: str) -> None:
    scenario = Scenario.model_validate(
        {
            "name": "small",
            "input": [{"topic": "in", "dataset": "numbers"}],
            "pipeline": {"command": ["job"]},
            "outputs": {"out": {"topic": "out", "identity": ["p"], **outputs}},
            "oracle": {"kind": "reference"},
        }
    )
    problems = ReferenceOracle.problems(ReferenceSpec.model_validate({"kind": "reference", **spec}), scenario)
    assert message in problems[0].message
    assert ReferenceOracle.problems(ReferenceSpec(kind="reference"), scenario) == [] or outputs
