"""Rows of kind upsert after a run that did not drain: the rest of the input may still change or remove them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge

from ..conftest import StoredRun

TOTALS = 'SELECT k, sum(n) AS total FROM "in" GROUP BY k'
LAST = 'SELECT k, n AS total, _partition, _offset FROM "in" QUALIFY row_number() OVER (PARTITION BY k ORDER BY _offset DESC) = 1'
OPEN = 'SELECT k, sum(n) AS total FROM "in" GROUP BY k HAVING max(n) < 5'


@pytest.fixture
def unfinished(tmp_path: Path) -> StoredRun:
    """Ten records of two keys, of which a query has processed the first six; a table holds their totals."""
    run = StoredRun(tmp_path / "run")
    for n in range(10):
        run.send(f"k{n % 2}", {"k": f"k{n % 2}", "n": n})
    run.batch(0, {0: (0, 6)})
    run.batch(1, {0: (6, 10)}, by=(0, None))
    run.progress({0: 6})
    run.scenario["outputs"] = {"totals": {"table": "totals", "kind": "upsert", "identity": ["k"]}}
    run.document |= {"drained": False, "drain_note": "the deadline of 36 s passed", "stuck": False}
    return run


def states(run: StoredRun, query: str, **totals: int) -> Any:
    run.scenario["oracle"] = {"kind": "sql", "queries": {"totals": query}}
    run.scenario["claim"] = {"order": "none"}
    run.insert("totals", *({"k": k, "total": total} for k, total in totals.items()))
    return judge(run.save())


def test_totals_of_the_input_so_far_are_not_wrong(unfinished: StoredRun) -> None:
    verdict = states(unfinished, TOTALS, k0=6, k1=9)
    assert (verdict.outcome, verdict.findings) == (Outcome.INCONCLUSIVE, ())
    assert verdict.not_evaluated["wrong-value@totals"] == (
        "2 rows differ, but the run did not drain, and the rest of the input may still change that"
    )


def test_the_same_totals_at_the_end_of_the_input_are_wrong(unfinished: StoredRun) -> None:
    unfinished.document |= {"drained": True, "drain_note": None}
    verdict = states(unfinished, TOTALS, k0=6, k1=9)
    assert [(f.anomaly, f.total) for f in verdict.findings] == [("wrong-value", 2)]


def test_a_state_whose_last_input_is_covered_is_judged(unfinished: StoredRun) -> None:
    """No later input changes it: the other keys of the query's input may be unfinished."""
    for table in ("input", "sent"):  # k0 has no later record
        unfinished.tables[table] = [r for r in unfinished.tables[table] if r["offset"] < 6 or r["offset"] % 2]
    verdict = states(unfinished, LAST, k0=3, k1=5)
    assert [(f.anomaly, f.total, f.witnesses[0].cause) for f in verdict.findings] == [("wrong-value", 1, "in/0@4")]
    assert verdict.not_evaluated["wrong-value@totals"].startswith("1 row differs, but the run did not drain")


def test_a_row_that_later_input_removes_is_not_unexplained(unfinished: StoredRun) -> None:
    verdict = states(unfinished, OPEN, k0=6)
    assert (verdict.outcome, verdict.findings) == (Outcome.INCONCLUSIVE, ())
    assert verdict.not_evaluated["unexplained@totals"].startswith("1 row is not expected at the end of the input, but")
