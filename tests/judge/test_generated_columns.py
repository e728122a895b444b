"""Generated columns of a table: they are compared if they were read back, and never called wrong if they were not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge


@pytest.fixture
def run(clean_run: Any) -> Any:
    """A correct run. The query of its table also gives ``twice``, a generated column of the table."""
    clean_run.scenario["oracle"]["queries"]["rows"] = (
        'SELECT _partition AS p, _offset AS o, k, n, n * 2 AS twice, _topic, _partition, _offset, _key FROM "in"'
    )
    clean_run.document["outputs"] = {
        "rows": {"columns": dict.fromkeys(("p", "o", "k", "n"), "text"), "generated": ["twice"], "rows": 12}
    }
    return clean_run


def test_a_column_that_was_not_read_is_not_called_wrong(run: Any) -> None:
    verdict = judge(run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert not [finding for finding in verdict.findings if finding.anomaly == "wrong-value"]
    assert any("its generated columns twice are not in the decoded commits" in why for why in verdict.reasons)


def test_a_column_that_was_read_is_compared(run: Any) -> None:
    run.document["outputs"]["rows"]["columns"]["twice"] = "integer"
    for change in run.tables["output"]:
        if change["output"] == "rows":
            row = json.loads(change["content"])
            change["content"] = json.dumps({**row, "twice": str(2 * int(row["n"]))}, separators=(",", ":"))
    assert judge(run.save()).outcome is Outcome.HELD


def test_a_column_that_was_read_need_not_be_compared(run: Any) -> None:
    run.scenario["oracle"]["queries"]["rows"] = run.scenario["oracle"]["queries"]["events"]
    run.document["outputs"]["rows"]["columns"]["twice"] = "integer"
    for change in run.tables["output"]:
        if change["output"] == "rows":
            row = json.loads(change["content"])
            change["content"] = json.dumps({**row, "twice": "any"}, separators=(",", ":"))
    assert judge(run.save()).outcome is Outcome.HELD
