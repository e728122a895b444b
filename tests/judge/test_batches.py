"""Each batch has a verdict of its own."""

from __future__ import annotations

from typing import Any

import pytest

from onceproof.base.errors import HistoryError
from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge


def batch_verdicts(run: Any) -> list[tuple[str, int, int, Outcome]]:
    return [(b.query, b.batch, b.records, b.verdict) for b in judge(run.save()).batches]


def test_clean_batches_are_held(clean_run: Any) -> None:
    clean_run.send("k0", {"k": "k0", "n": -1}, visibility="aborted")  # in no batch
    clean_run.tables["input"][-1]["txn_end_ms"] = 2_000
    clean_run.fault(batch=1)
    verdict = judge(clean_run.save())
    first, second = verdict.batches
    assert (first.query, first.batch, first.records, first.verdict) == ("q", 0, 6, Outcome.HELD)
    assert (second.records, second.faults) == (6, ("crash driver in batch 1 at after-sink-commit",))
    assert (first.planned_by, first.committed_by, first.anomalies) == (0, 0, {})


def test_batch_with_a_missing_effect_is_violated(clean_run: Any) -> None:
    clean_run.tables["output"] = [c for c in clean_run.tables["output"] if '"o": 5' not in c["content"]]
    first, second = judge(clean_run.save()).batches
    assert (first.verdict, first.anomalies) == (Outcome.HELD, {})
    assert second.verdict is Outcome.VIOLATED
    assert second.anomalies["lost-write"] == 2


def test_batch_that_was_never_committed_is_not_held(clean_run: Any) -> None:
    for batch in clean_run.tables["batches"][-2:]:
        batch.update(committed_at=None, committed_by=None)
    assert batch_verdicts(clean_run) == [("q", 0, 6, Outcome.HELD), ("q", 1, 6, Outcome.INCONCLUSIVE)]


def test_violation_in_an_unknown_batch_makes_all_batches_inconclusive(clean_run: Any) -> None:
    clean_run.record("events", {"p": 9, "o": 9, "k": "k", "n": 1})
    assert batch_verdicts(clean_run) == [("q", 0, 6, Outcome.INCONCLUSIVE), ("q", 1, 6, Outcome.INCONCLUSIVE)]


def test_an_unevaluated_checker_makes_all_batches_inconclusive(clean_run: Any) -> None:
    clean_run.record("events", "{not json")
    assert {b.verdict for b in judge(clean_run.save()).batches} == {Outcome.INCONCLUSIVE}


def test_run_without_batches_has_no_batch_reports(clean_run: Any) -> None:
    clean_run.tables["batches"].clear()
    assert judge(clean_run.save()).batches == ()


def continuous(run: Any) -> Any:
    """The run as one in continuous processing that was restarted: its offset log goes back, and two rows occur twice."""
    run.document["modes"] = {"q": "continuous"}
    for partition in range(2):
        row = next(r for r in run.tables["batches"] if r["batch"] == 1 and r["partition"] == partition)
        row.update(end_offset=0, committed_by=1)
    run.fault(batch=1)
    copies = [c["content"] for c in run.tables["output"] if c["output"] == "events" and '"o": 5' in c["content"]]
    for partition, content in enumerate(copies):
        run.record("events", content, partition=partition)
    return run


def test_an_epoch_of_continuous_processing_is_not_judged_as_a_batch(clean_run: Any) -> None:
    verdict = judge(continuous(clean_run).save())
    assert verdict.outcome is Outcome.VIOLATED
    duplicate = verdict.findings[0]
    assert (duplicate.anomaly, duplicate.total, duplicate.batches) == ("duplicate", 2, {})
    assert (verdict.batches, verdict.counts["batches"]) == ((), 0)
    assert any("so no epoch is judged as a batch" in reason for reason in verdict.reasons)


def test_a_right_output_of_continuous_processing_is_not_held(clean_run: Any) -> None:
    run = continuous(clean_run)
    del run.tables["output"][-2:]
    verdict = judge(run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reasons[0].startswith("query q uses continuous processing")


@pytest.mark.parametrize("restart", ["fault", "the job's own end"])
def test_at_least_once_may_allow_a_copy_from_an_unknown_epoch(clean_run: Any, restart: str) -> None:
    run = continuous(clean_run)
    run.scenario["claim"] = {"delivery": "at-least-once"}
    if restart != "fault":
        run.tables["faults"].clear()
        run.document["job"] = {"starts": 2}
    verdict = judge(run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    why = "the log of query q does not say which epochs wrote the copy"
    assert f"Whether at-least-once allows this cannot be decided: {why}" in "\n".join(verdict.reasons)
    argument = verdict.findings[0].witnesses[0].argument
    assert f"Why it was written again is not known: {why}." in argument


def test_at_least_once_does_not_allow_a_copy_that_no_restart_explains(clean_run: Any) -> None:
    run = continuous(clean_run)
    run.scenario["claim"] = {"delivery": "at-least-once"}
    run.tables["faults"].clear()
    assert judge(run.save()).outcome is Outcome.VIOLATED


@pytest.mark.parametrize(("planned_by", "outcome"), [(0, Outcome.INCONCLUSIVE), (1, Outcome.VIOLATED)])
def test_rows_of_a_repeated_epoch_may_still_come(clean_run: Any, planned_by: int, outcome: Outcome) -> None:
    clean_run.document.update(modes={"q": "continuous"}, drained=False, stuck=False, drain_note="the deadline ended it")
    for row in clean_run.tables["batches"]:
        if row["batch"] == 1:
            row.update(planned_by=planned_by, committed_by=1)
    clean_run.fault(batch=1)
    clean_run.tables["output"] = [c for c in clean_run.tables["output"] if '"o": 5' not in c["content"]]
    assert judge(clean_run.save()).outcome is outcome


@pytest.mark.parametrize("modes", [None, {"q": "realtime"}, {"other": "continuous"}])
def test_an_offset_log_that_goes_back_is_refused_in_batches(clean_run: Any, modes: dict[str, str] | None) -> None:
    continuous(clean_run).document["modes"] = modes
    with pytest.raises(HistoryError, match="start_offset 4 is greater than its end_offset 0"):
        judge(clean_run.save())


def test_batch_reports_are_in_the_json(clean_run: Any) -> None:
    clean_run.scenario["outputs"]["events"]["ignore"] = ["loaded_at"]
    document = judge(clean_run.save()).to_json()
    assert document["batches"][0]["verdict"] == "held"
    assert document["ignored"] == {"events": ["loaded_at", "record key"]}
    assert document["slices"] == {}
