from __future__ import annotations

import json
from typing import Any

from onceproof.judge.verdict import judge


def drop(run: Any, output: str, offset: int) -> None:
    def is_it(change: dict[str, Any]) -> bool:
        row = json.loads(change["content"])
        return change["output"] == output and (int(row["p"]), int(row["o"])) == (0, offset)

    run.tables["output"] = [c for c in run.tables["output"] if not is_it(c)]


def disagreements(run: Any) -> list[tuple[str, int, dict[str, int]]]:
    found = judge(run.save()).findings
    return [(f.output, f.total, f.attribution) for f in found if f.anomaly == "sink-disagreement"]


def test_one_output_lacks_what_the_other_has(clean_run: Any) -> None:
    drop(clean_run, "events", 1)
    assert disagreements(clean_run) == [("events", 1, {"present in rows": 1})]


def test_both_lack_it(clean_run: Any) -> None:
    drop(clean_run, "events", 1)
    drop(clean_run, "rows", 1)
    assert disagreements(clean_run) == []


def test_output_that_filters_more(clean_run: Any) -> None:
    for output in ("events", "rows"):
        clean_run.scenario["oracle"]["queries"][output] += " AND n % 100 < 10" if output == "events" else ""
    clean_run.tables["output"] = [
        c for c in clean_run.tables["output"] if c["output"] == "rows" or json.loads(c["content"])["n"] % 100 < 10
    ]
    assert judge(clean_run.save()).findings == ()


def test_before_a_quiet_point_it_is_allowed(clean_run: Any) -> None:
    clean_run.document["drained"] = False
    clean_run.tables["progress"].clear()
    clean_run.progress({0: 4, 1: 4})
    drop(clean_run, "events", 5)
    verdict = judge(clean_run.save())
    assert verdict.anomalies() == {"stale-tail": 1}
    (finding,) = [f for f in verdict.findings if f.anomaly == "sink-disagreement"]
    assert "no quiet point" in (finding.allowed or "")


def test_one_output_has_nothing_to_disagree_with(clean_run: Any) -> None:
    clean_run.scenario["outputs"].pop("rows")
    clean_run.scenario["oracle"]["queries"].pop("rows")
    drop(clean_run, "events", 1)
    assert disagreements(clean_run) == []
