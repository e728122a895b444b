from __future__ import annotations

from typing import Any

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge


def stop_after_the_first_batch(run: Any) -> None:
    """The second batch is neither in the outputs nor recorded as done."""
    run.document.update(drained=False, drain_note="no progress for 60 s")
    run.tables["progress"].clear()
    run.progress({0: 4, 1: 4})
    cut = [
        c
        for c in run.tables["output"]
        if (c["commit_order"] or 0) == 0 and c["offset"] < (3 if c["partition"] is not None else 6)
    ]
    run.tables["output"] = cut


def test_a_job_that_never_recovered_leaves_a_stale_tail(clean_run: Any) -> None:
    stop_after_the_first_batch(clean_run)
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.VIOLATED
    assert [(f.anomaly, f.output, f.total) for f in verdict.findings] == [
        ("stale-tail", "events", 6),
        ("stale-tail", "rows", 6),
    ]
    finding = verdict.findings[0]
    assert finding.attribution == {"beyond offset 4 of in/0": 3, "beyond offset 4 of in/1": 3}
    assert "no progress for 60 s" in finding.witnesses[0].argument


def test_a_job_that_was_only_slow_leaves_no_stale_tail(clean_run: Any) -> None:
    stop_after_the_first_batch(clean_run)
    clean_run.document["stuck"] = False
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.findings == ()
    assert "still made progress" in verdict.not_evaluated["stale-tail@rows"]


def test_a_claim_without_recovery_allows_a_stale_tail(clean_run: Any) -> None:
    stop_after_the_first_batch(clean_run)
    clean_run.scenario["claim"] = {"liveness": "none"}
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.HELD
    assert all(f.allowed == "no recovery is claimed" for f in verdict.findings)


def test_a_drained_run_has_no_stale_tail(clean_run: Any) -> None:
    stop_after_the_first_batch(clean_run)
    clean_run.document["drained"] = True
    assert "stale-tail" not in {f.anomaly for f in judge(clean_run.save()).findings}
