from __future__ import annotations

from typing import Any

import pytest

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge


def lose(run: Any, output: str, offset: int, partition: int = 0) -> None:
    """Remove the effect of that input record."""
    texts = (f'"p":"{partition}","o":"{offset}"', f'"p": {partition}, "o": {offset}')
    kept = [c for c in run.tables["output"] if c["output"] != output or not any(t in c["content"] for t in texts)]
    assert len(kept) == len(run.tables["output"]) - 1
    run.tables["output"] = kept


def lost(run: Any) -> Any:
    (finding,) = [f for f in judge(run.save()).findings if f.anomaly == "lost-write"]
    return finding


def test_a_loss_in_the_middle_without_a_fault_is_found(clean_run: Any) -> None:
    lose(clean_run, "rows", 1)
    finding = lost(clean_run)
    assert (finding.output, finding.total, finding.source) == ("rows", 1, "no fault")
    assert finding.attribution == {"from batch 0 (query q)": 1}
    (witness,) = finding.witnesses
    assert (witness.cause, witness.batch, witness.identity) == ("in/0@1", 0, {"p": "0", "o": "1"})
    assert witness.argument == (
        "Input in/0@1 is committed, in batch 0 of query q, planned and committed by driver start 0.\n"
        "Progress of in/0 is recorded up to 8.\n"
        "But of 1 row expected, 0 can be read; no fault was active in its batch."
    )
    assert finding.batches == {"q/0": 1}


def test_a_loss_in_a_fault_window_names_the_fault(clean_run: Any) -> None:
    clean_run.fault(batch=1)
    lose(clean_run, "events", 5)
    finding = lost(clean_run)
    assert (finding.output, finding.source) == ("events", "fault")
    assert finding.attribution == {"from batch 1 (query q), struck by crash driver in batch 1 at after-sink-commit": 1}


def test_fault_in_another_batch_is_no_excuse(clean_run: Any) -> None:
    clean_run.fault(batch=0)
    lose(clean_run, "events", 5)
    assert lost(clean_run).source == "no fault"


def test_progress_decides_if_the_run_did_not_drain(clean_run: Any) -> None:
    clean_run.document["drained"] = False
    clean_run.tables["progress"].clear()
    clean_run.progress({0: 4, 1: 8})
    lose(clean_run, "events", 2)
    lose(clean_run, "events", 5)
    verdict = judge(clean_run.save())
    found = {f.anomaly: f for f in verdict.findings if f.anomaly not in ("sink-disagreement", "torn-batch")}
    assert {name: (f.total, f.witnesses[0].cause) for name, f in found.items()} == {
        "lost-write": (1, "in/0@2"),
        "stale-tail": (1, "in/0@5"),
    }


def test_the_slowest_query_decides(clean_run: Any) -> None:
    clean_run.document["drained"] = False
    clean_run.tables["progress"].append({**clean_run.tables["progress"][0], "query": "other", "end_offset": 1})
    lose(clean_run, "events", 2)
    assert "lost-write" not in judge(clean_run.save()).anomalies()


def test_uncommitted_input_and_gaps_are_not_losses(clean_run: Any) -> None:
    clean_run.send("k0", {"k": "k0", "n": 99}, visibility="aborted")
    clean_run.tables["input"][-1].update(producer_id=1, txn_end_offset=clean_run.skip("in", 0), txn_end_ms=2_000)
    assert judge(clean_run.save()).outcome is Outcome.HELD


def test_losing_one_of_two_equal_effects_is_found(clean_run: Any) -> None:
    """Effects are compared as multisets: two equal inputs need two equal effects."""
    run = clean_run
    run.scenario["outputs"] = {"events": {"topic": "events", "identity": ["k"], "ignore": ["p", "o"]}}
    run.scenario["oracle"] = {"kind": "identity", "columns": {"events": {"k": "k"}}}
    run.tables["output"] = [c for c in run.tables["output"] if c["output"] == "events"]
    run.tables["commits"].clear()
    lose(run, "events", 5)
    finding = lost(run)
    assert finding.total == 1
    assert finding.witnesses[0].identity == {"k": "k1"}


def test_a_loss_without_a_cause_needs_a_drained_run(clean_run: Any) -> None:
    query = 'SELECT _partition AS p, _offset AS o, k, n FROM "in"'
    clean_run.scenario["oracle"]["queries"] = {"rows": query, "events": query}
    clean_run.scenario["claim"] = {"order": "none"}
    lose(clean_run, "events", 2)
    assert lost(clean_run).total == 1
    clean_run.document["drained"] = False
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "names no cause" in verdict.not_evaluated["lost-write@events"]


def test_at_most_once_allows_losses_in_a_fault_window_only(clean_run: Any) -> None:
    clean_run.scenario["claim"] = {"delivery": "at-most-once"}
    clean_run.fault(batch=1)
    lose(clean_run, "events", 5)
    assert judge(clean_run.save()).outcome is Outcome.HELD
    lose(clean_run, "events", 1)
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.VIOLATED
    assert verdict.anomalies()["lost-write"] == 1


def test_at_most_once_is_never_held_by_an_empty_output(clean_run: Any) -> None:
    clean_run.scenario["claim"] = {"delivery": "at-most-once"}
    clean_run.fault(batch=0)
    clean_run.fault(batch=1)
    clean_run.tables["output"] = [c for c in clean_run.tables["output"] if c["output"] == "rows"]
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "output events is empty" in verdict.reasons[0]


def test_the_progress_of_the_query_that_writes_the_output_decides(clean_run: Any) -> None:
    """The progress of another query, which lags or has recorded nothing yet, matters only if the output names no query."""
    run = clean_run
    run.document |= {"drained": False, "stuck": True}
    run.scenario["claim"] = {"liveness": "none"}
    for partition in range(2):
        at = {"query": "slow", "batch": 0, "topic": "in", "partition": partition}
        run.add("batches", {**at, "start_offset": 0, "end_offset": 8})
    lose(run, "rows", 1)
    assert judge(run.save()).anomalies() == {}
    for output in run.scenario["outputs"].values():
        output["query"] = "q"
    assert judge(run.save()).anomalies() == {"lost-write": 1}


def kept_back(run: Any, reason: str, note: str) -> None:
    """No batch has acted on the query's last watermark."""
    run.document["open_watermarks"] = {"q": {"batch": 1, "reason": reason, "note": note}}
    run.document["drained"] = reason == "none"
    run.document["drain_note"] = None if run.document["drained"] else note
    run.document["stuck"] = False


@pytest.mark.parametrize("reason", ["restarted", "due", "open"])
def test_effects_that_may_still_be_in_a_query_s_state_are_not_lost(clean_run: Any, reason: str) -> None:
    lose(clean_run, "rows", 1)
    kept_back(clean_run, reason, "batch 1 moved the watermark, and the driver was restarted")
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "lost-write" not in [f.anomaly for f in verdict.findings]
    assert any("the run did not drain" in reason and "driver was restarted" in reason for reason in verdict.reasons)


def test_a_loss_mentions_that_spark_planned_no_batch_for_the_last_watermark(clean_run: Any) -> None:
    lose(clean_run, "rows", 1)
    kept_back(clean_run, "none", "batch 1 moved the watermark, and Spark planned no batch for it")
    (witness,) = lost(clean_run).witnesses
    assert (
        "is recorded up to 8.\nBut batch 1 moved the watermark, and Spark planned no batch for it.\n"
        in witness.argument
    )
    assert "batch 1 moved the watermark, and Spark planned no batch for it" in judge(clean_run.path).reasons
