from __future__ import annotations

import json
from typing import Any

from onceproof.judge.verdict import judge


def alter(run: Any, output: str, offset: int, **values: Any) -> None:
    for change in run.tables["output"]:
        row = json.loads(change["content"])
        if change["output"] == output and (int(row["p"]), int(row["o"])) == (0, offset):
            change["content"] = json.dumps({**row, **values}, separators=(",", ":"))


def test_inflated_value(clean_run: Any) -> None:
    alter(clean_run, "rows", 1, n="21")
    (finding,) = judge(clean_run.save()).findings
    assert (finding.anomaly, finding.output, finding.total) == ("wrong-value", "rows", 1)
    (witness,) = finding.witnesses
    assert (witness.identity, witness.cause) == ({"p": "0", "o": "1"}, "in/0@1")
    assert witness.argument == "input in/0@1 is committed; expected: n = 1.\nYet found: n = 21."
    assert witness.positions == ("rows xid 700",)


def test_value_that_is_gone(clean_run: Any) -> None:
    alter(clean_run, "events", 1, k=None)
    (finding,) = judge(clean_run.save()).findings
    assert "Yet found: k = null" in finding.witnesses[0].argument


def test_second_copy_with_another_value(clean_run: Any) -> None:
    clean_run.record("events", {"p": 0, "o": 1, "k": "k1", "n": 5})
    findings = judge(clean_run.save()).findings
    assert [(f.anomaly, f.total) for f in findings] == [("wrong-value", 1)]
    assert "expected: n = 1" in findings[0].witnesses[0].argument


def test_ignored_column_may_differ(clean_run: Any) -> None:
    clean_run.scenario["outputs"]["events"]["ignore"] = ["n"]
    alter(clean_run, "events", 1, n=77)
    assert judge(clean_run.save()).findings == ()


def test_same_value_in_another_spelling(clean_run: Any) -> None:
    alter(clean_run, "events", 1, n=1.0)
    assert judge(clean_run.save()).findings == ()


def test_rounding_does_not_hide_it(clean_run: Any) -> None:
    alter(clean_run, "events", 1, n=1.4)
    (finding,) = judge(clean_run.save()).findings
    assert "Yet found: n = 1.4" in finding.witnesses[0].argument
