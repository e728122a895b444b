"""An output of which only the final rows are known: findings need no more, and checkers that do say so instead of passing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.history.schema import TABLES
from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import check, judge

WHY = "its store gives a final snapshot only, so its commits are unknown"


@pytest.fixture
def run(clean_run: Any) -> Any:
    """A correct run whose table is in a database without a stream of commits; a second driver start took over."""
    rows = clean_run._replayed("rows")
    clean_run.scenario["outputs"] = {
        "rows": {"sql_table": "rows", "url_env": "SHOP_DATABASE", "identity": ["p", "o"]},
    }
    del clean_run.scenario["oracle"]["queries"]["events"]
    clean_run.scenario["claim"] = {}
    clean_run.tables |= {"output": [], "commits": []}
    clean_run.document |= {"wall_start": 1000.0, "job": {**clean_run.document["job"], "starts": 2}}
    for batch in clean_run.tables["batches"]:
        if batch["batch"] == 1:
            batch.update(planned_by=1, committed_by=1)
    put(clean_run, rows)
    return clean_run


def put(run: Any, rows: list[dict[str, Any]]) -> None:
    run.tables["snapshot"] = [
        {**dict.fromkeys(TABLES["snapshot"].names), "output": "rows", "content": json.dumps(row)} for row in rows
    ]


def test_the_final_rows_can_be_held(run: Any) -> None:
    verdict = judge(run.save())
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    of = ("commit-ahead-of-effect", "reordered", "zombie-write")
    assert verdict.not_evaluated == {f"{checker}@rows": WHY for checker in of}


@pytest.mark.parametrize(
    ("claim", "checker"),
    [
        ({"order": "per-key"}, "reordered"),
        ({"atomic": "batch"}, "torn-batch"),
        ({"atomic": "transaction"}, "torn-batch"),
    ],
)
def test_a_promise_about_commits_is_inconclusive(run: Any, claim: dict[str, str], checker: str) -> None:
    run.scenario["claim"] = claim
    verdict = judge(run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert f"{checker} could not be evaluated on output rows: {WHY}" in verdict.reasons


def test_an_empty_table_has_lost_every_row(run: Any) -> None:
    put(run, [])
    assert judge(run.save()).anomalies() == {"lost-write": 12}


def test_a_copy_is_a_duplicate_of_its_table(run: Any) -> None:

    rows = [json.loads(row["content"]) for row in run.tables["snapshot"]]
    put(run, [*rows, rows[0]])
    verdict = judge(run.save())
    assert verdict.anomalies() == {"duplicate": 1}
    (finding,) = (finding for finding in verdict.findings if finding.anomaly == "duplicate")
    assert finding.witnesses[0].positions == ("rows", "rows")


def test_its_slice_shows_the_same_finding(run: Any) -> None:
    rows = [json.loads(row["content"]) for row in run.tables["snapshot"]]
    put(run, [*rows, rows[0]])
    directory = run.save()
    verdict = check(directory)
    assert verdict.slices, verdict.not_evaluated
    for folder in verdict.slices.values():
        assert judge(directory / folder).anomalies() == {"duplicate": 1}
