from __future__ import annotations

import json
from typing import Any

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge


def drop(run: Any, output: str, offset: int) -> None:
    def is_it(change: dict[str, Any]) -> bool:
        row = json.loads(change["content"])
        return change["output"] == output and (int(row["p"]), int(row["o"])) == (0, offset)

    run.tables["output"] = [c for c in run.tables["output"] if not is_it(c)]


def disagreements(run: Any) -> list[tuple[str, int, dict[str, int]]]:
    found = judge(run.save()).findings
    return [(f.output, f.total, f.attribution) for f in found if f.anomaly == "sink-disagreement"]


def test_an_effect_in_one_of_two_outputs_is_a_disagreement(clean_run: Any) -> None:
    drop(clean_run, "events", 1)
    assert disagreements(clean_run) == [("events", 1, {"present in rows": 1})]


def test_the_argument_names_the_position(clean_run: Any) -> None:
    drop(clean_run, "rows", 1)
    (finding,) = [f for f in judge(clean_run.save()).findings if f.anomaly == "sink-disagreement"]
    assert (finding.output, finding.source, finding.batches) == ("rows", "no fault", {"q/0": 1})
    assert finding.witnesses[0].argument == (
        "Input in/0@1 should be in 'rows' and in 'events'.\n"
        "'events' holds its record, at events/0@1.\n"
        "But 'rows' does not."
    )


def test_at_most_once_allows_a_disagreement_in_a_fault_window(clean_run: Any) -> None:
    clean_run.scenario["claim"] = {"delivery": "at-most-once"}
    clean_run.fault(batch=0)
    drop(clean_run, "events", 1)
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.HELD, verdict.reasons


def test_an_effect_that_both_outputs_lack_is_no_disagreement(clean_run: Any) -> None:
    drop(clean_run, "events", 1)
    drop(clean_run, "rows", 1)
    assert disagreements(clean_run) == []


def test_an_output_that_filters_more_is_no_disagreement(clean_run: Any) -> None:
    for output in ("events", "rows"):
        clean_run.scenario["oracle"]["queries"][output] += " AND n % 100 < 10" if output == "events" else ""
    clean_run.tables["output"] = [
        c for c in clean_run.tables["output"] if c["output"] == "rows" or json.loads(c["content"])["n"] % 100 < 10
    ]
    assert judge(clean_run.save()).findings == ()


def test_a_disagreement_before_a_quiet_point_is_allowed(clean_run: Any) -> None:
    clean_run.document["drained"] = False
    clean_run.tables["progress"].clear()
    clean_run.progress({0: 4, 1: 4})
    drop(clean_run, "events", 5)
    verdict = judge(clean_run.save())
    assert verdict.anomalies() == {"stale-tail": 1}
    (finding,) = [f for f in verdict.findings if f.anomaly == "sink-disagreement"]
    assert finding.transient
    assert "no quiet point" in (finding.allowed or "")


def test_a_single_output_cannot_disagree(clean_run: Any) -> None:
    clean_run.scenario["outputs"].pop("rows")
    clean_run.scenario["oracle"]["queries"].pop("rows")
    clean_run.tables["output"] = [c for c in clean_run.tables["output"] if c["output"] == "events"]
    clean_run.tables["commits"].clear()
    drop(clean_run, "events", 1)
    assert disagreements(clean_run) == []


def two_states(run: Any) -> Any:
    """One query keeps the last number of each key in a table and in a topic."""
    query = 'SELECT k, max_by(n, _offset) AS n FROM "in" GROUP BY k'
    run.scenario["outputs"] = {
        name: {where: name, "kind": "upsert", "identity": ["k"]}
        for name, where in (("base", "table"), ("index", "topic"))
    }
    run.scenario["oracle"] = {"kind": "sql", "queries": {"base": query, "index": query}}
    for n in (1, 2):
        run.send("a", {"k": "a", "n": n})
    run.progress({0: 2})
    return run


def write(run: Any, *, base: tuple[int, ...], index: tuple[int, ...]) -> Any:
    """Each output gets these states of key ``a``, in this order."""
    before = None
    for n in base:
        after = {"k": "a", "n": n}
        run.commit("base", ("insert" if before is None else "update", before, after))
        before = after
    for n in index:
        run.record("index", {"k": "a", "n": n})
        run.tables["output"][-1]["key"] = b"a"
    return run


def test_dual_writes_in_the_same_order_agree(stored_run: Any) -> None:
    run = write(two_states(stored_run), base=(1, 2), index=(1, 2))
    assert judge(run.save()).findings == ()


def test_dual_writes_in_another_order_disagree_for_good(stored_run: Any) -> None:
    run = write(two_states(stored_run), base=(1, 2), index=(2, 1))
    verdict = judge(run.save())
    assert verdict.anomalies()["sink-disagreement"] == 1
    (finding,) = [f for f in verdict.findings if f.anomaly == "sink-disagreement"]
    assert (finding.output, finding.source, finding.attribution) == ("index", "other state", {"right in base": 1})
    assert finding.witnesses[0].argument == (
        "Outputs 'index' and 'base' keep the state of this identity.\n"
        "'base' holds the right one, at base xid 701.\n"
        "But 'index' holds another (at index/0@1)."
    )


def test_a_state_in_one_of_two_outputs_is_a_disagreement(stored_run: Any) -> None:
    run = write(two_states(stored_run), base=(1, 2), index=())
    assert disagreements(run) == [("index", 1, {"present in base": 1})]


def test_equally_wrong_outputs_do_not_disagree(stored_run: Any) -> None:
    run = write(two_states(stored_run), base=(2, 1), index=(2, 1))
    assert disagreements(run) == []


def test_an_effect_in_an_open_transaction_is_no_disagreement(clean_run: Any) -> None:
    for change in clean_run.tables["output"]:
        if change["output"] == "events" and json.loads(change["content"])["o"] == 1:
            change["visibility"] = "open"
    assert disagreements(clean_run) == []


def test_outputs_without_causes_or_a_common_identity_are_not_evaluated(clean_run: Any) -> None:
    for output in ("rows", "events"):
        clean_run.scenario["oracle"]["queries"][output] = 'SELECT _partition AS p, _offset AS o, k, n FROM "in"'
    clean_run.scenario["claim"] = {"order": "none"}
    drop(clean_run, "events", 1)  # the identity still connects them
    assert disagreements(clean_run) == [("events", 1, {"present in rows": 1})]
    clean_run.scenario["outputs"]["rows"]["identity"] = ["p", "o", "k"]
    assert "sink-disagreement@rows" in judge(clean_run.save()).not_evaluated
