from __future__ import annotations

import json
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


def without_a_row(run: Any) -> None:
    """The row of in/0@2 is missing, and the run did not drain."""
    run.document.update(drained=False, drain_note="no progress for 60 s")
    run.scenario["claim"] = {"liveness": "none"}
    run.scenario["outputs"].pop("events")
    run.scenario["oracle"]["queries"].pop("events")
    missing = {"p": "0", "o": "2"}.items()
    run.tables["output"] = [
        c for c in run.tables["output"] if c["output"] == "rows" and not missing <= json.loads(c["content"]).items()
    ]


def test_a_row_that_one_of_two_queries_may_have_lost_is_not_only_a_stale_tail(clean_run: Any) -> None:
    without_a_row(clean_run)
    (batch, *_) = clean_run.tables["batches"]
    clean_run.add("batches", {**batch, "query": "slow", "committed_at": None, "committed_by": None})
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.not_evaluated["lost-write@rows"] == (
        "1 row missing, whose input one query is done with and another is not: let the output name the query that writes it"
    )
    (finding,) = verdict.findings
    assert (finding.anomaly, finding.allowed) == ("stale-tail", "no recovery is claimed")
    assert finding.witnesses[0].argument == (
        "Input in/0@2 is committed.\nThe query that is furthest behind in in/0 has recorded no progress.\n"
        "But its row is missing: no progress for 60 s."
    )
    clean_run.scenario["outputs"]["rows"]["query"] = "q"
    assert judge(clean_run.save()).anomalies() == {"lost-write": 1}
    clean_run.scenario["outputs"]["rows"]["query"] = "slow"
    verdict = judge(clean_run.save())
    assert (verdict.outcome, verdict.anomalies()) == (Outcome.HELD, {}), verdict.reasons


def test_a_missing_row_of_a_committed_batch_without_recorded_progress_may_be_lost(clean_run: Any) -> None:
    without_a_row(clean_run)
    clean_run.tables["progress"].clear()
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.not_evaluated["lost-write@rows"] == (
        "1 row missing, from committed batches of a query that has recorded no progress: it is not known whether the job is done "
        "with them"
    )
    for batch in clean_run.tables["batches"]:
        batch.update(committed_at=None, committed_by=None)
    assert judge(clean_run.save()).outcome is Outcome.HELD
