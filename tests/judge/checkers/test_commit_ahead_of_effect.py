from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.judge.findings import Finding, Outcome
from onceproof.judge.verdict import judge


def ahead(run: Any) -> list[Finding]:
    return [f for f in judge(run.save()).findings if f.anomaly == "commit-ahead-of-effect"]


@pytest.fixture
def timed(clean_run: Any) -> Any:
    """Batch N runs from N to N + 0.5 seconds; its commit and its records have the time N + 0.25."""
    clean_run.document["wall_start"] = 1000.0
    for commit in clean_run.tables["commits"]:
        commit["commit_time_us"] = int((1000.25 + commit["commit_order"]) * 1_000_000)
    for record in records(clean_run):
        batch = int(json.loads(record["content"])["o"] >= 4)
        record["timestamp_ms"] = 1_000_250 + 1000 * batch
    return clean_run


def records(run: Any) -> list[dict[str, Any]]:
    return [c for c in run.tables["output"] if c["output"] == "events"]


def progress(run: Any, *commits: tuple[int, int]) -> Any:
    """The sink's own progress table: (commit, position) for both partitions, in the commits of the rows or in others."""
    columns = {"partition": "part", "end_offset": "done"}
    run.scenario["outputs"]["rows"]["progress"] = {"table": "progress", **columns}
    xids = {commit["commit_order"]: commit["xid"] for commit in run.tables["commits"]}
    position = 0
    before: dict[int, str] = {}
    for order, end in commits:
        for partition in range(2):
            content = json.dumps({"part": str(partition), "done": str(end)})
            where = {"output": "rows#progress", "offset": position, "xid": xids[order], "commit_order": order}
            op = "update" if partition in before else "insert"
            values = {"content": content, "before": before.get(partition), "visibility": "committed"}
            run.add("output", {**where, "op": op, **values})
            before[partition] = content
            position += 1
    return run


def empty_commit(run: Any, order: int) -> None:
    """Insert a commit before all others of at least that order."""
    for table in ("output", "commits"):
        for row in run.tables[table]:
            if row["commit_order"] is not None and row["commit_order"] >= order:
                row.update(commit_order=row["commit_order"] + 1, xid=row["xid"] + 1)
    run.tables["commits"].insert(order, {**run.tables["commits"][0], "commit_order": order, "xid": 700 + order})


def test_effects_before_their_progress_are_no_finding(timed: Any) -> None:
    verdict = judge(progress(timed, (0, 4), (1, 8)).save())
    assert (verdict.outcome, verdict.findings, verdict.not_evaluated) == (Outcome.HELD, (), {})


def test_rows_after_their_batch_was_recorded_as_done_are_found(timed: Any) -> None:
    timed.tables["commits"][0]["commit_time_us"] = 1_000_700_000
    (finding,) = ahead(timed)
    assert (finding.output, finding.total, finding.source, finding.transient) == ("rows", 6, "checkpoint", True)
    assert (finding.batches, finding.attribution) == ({"q/0": 6}, {"ahead in the checkpoint": 6})
    assert (finding.allowed or "").startswith("transient: ")
    assert finding.witnesses[0].argument == (
        "Input in/0@0 is committed, in batch 0 of query q.\n"
        "Progress beyond it is recorded by commits/0 of query q.\n"
        "But its row came 200 ms later, at rows xid 700."
    )


def test_a_record_after_its_batch_was_recorded_as_done_is_found(timed: Any) -> None:
    records(timed)[2]["timestamp_ms"] = 1_000_501  # the last of its partition in batch 0
    (finding,) = ahead(timed)
    assert (finding.output, finding.total, finding.source) == ("events", 1, "checkpoint")
    assert finding.witnesses[0].positions == ("events/0@2",)


@pytest.mark.parametrize(("marker", "found"), [(1_000_900, 0), (1_001_600, 6)])
def test_the_marker_of_a_transaction_may_come_a_little_later(timed: Any, marker: int, found: int) -> None:
    """The transaction was decided when EndTxn was answered; its markers follow."""
    for record in records(timed):
        batch = int(json.loads(record["content"])["o"] >= 4)
        end = marker if batch == 0 else 1_001_300
        record.update(producer_id=9, producer_epoch=batch, txn_end_offset=90 + batch, txn_end_ms=end)
    assert sum(finding.total for finding in ahead(timed)) == found


def test_a_repetition_is_not_late(timed: Any) -> None:
    timed.insert("rows", {"p": 0, "o": 0, "k": "k0", "n": 0})
    timed.tables["commits"][-1]["commit_time_us"] = 1_009_000_000
    assert ahead(timed) == []


def test_a_progress_table_before_the_rows_is_found(timed: Any) -> None:
    empty_commit(timed, 1)
    (finding,) = ahead(progress(timed, (0, 4), (1, 8)))
    assert (finding.output, finding.total, finding.source, finding.transient) == ("rows", 6, "table", True)
    assert finding.batches == {"q/1": 6}
    assert finding.witnesses[0].argument == (
        "Input in/0@4 is committed, in batch 1 of query q.\n"
        "Progress beyond it is recorded by progress xid 701 (in/0 up to 8).\n"
        "But its row came in a later commit, at rows xid 702."
    )


def test_a_progress_table_after_the_rows_is_no_finding(timed: Any) -> None:
    """A crash in between would repeat the batch: that is a duplicate."""
    timed.tables["commits"].append({**timed.tables["commits"][1], "commit_order": 2, "xid": 702})
    assert ahead(progress(timed, (0, 4), (2, 8))) == []


@pytest.mark.parametrize(("fault", "source"), [(False, "no fault"), (True, "fault")])
def test_rows_missing_although_a_progress_table_covers_them_are_found(timed: Any, fault: bool, source: str) -> None:
    if fault:
        timed.fault(batch=1)
    progress(timed, (0, 4), (1, 8))
    timed.tables["output"] = [
        c for c in timed.tables["output"] if c["output"] != "rows" or json.loads(c["content"])["o"] != "5"
    ]
    (finding,) = ahead(timed)
    assert (finding.total, finding.source, finding.transient, finding.allowed) == (2, source, False, None)
    assert finding.witnesses[0].argument.endswith("(in/0 up to 8).\nBut its row is missing.")
    timed.scenario["claim"] = {"delivery": "at-most-once"}
    assert (ahead(timed)[0].allowed is not None) == fault


def test_a_loss_that_only_the_checkpoint_covers_is_a_lost_write(timed: Any) -> None:
    progress(timed, (0, 4))
    timed.tables["output"] = [
        c for c in timed.tables["output"] if c["output"] != "rows" or json.loads(c["content"])["o"] != "5"
    ]
    assert ahead(timed) == []
    assert judge(timed.save()).anomalies()["lost-write"] == 2


def test_records_missing_although_a_progress_table_covers_them_are_found(timed: Any) -> None:
    timed.scenario["outputs"]["events"]["progress"] = {"table": "sent", "partition": "part", "end_offset": "done"}
    where = {"output": "events#progress", "op": "insert", "offset": 0, "xid": 701, "commit_order": 1}
    timed.add("output", {**where, "content": json.dumps({"part": "0", "done": "8"}), "visibility": "committed"})
    timed.tables["output"].remove(next(r for r in records(timed) if json.loads(r["content"])["o"] == 5))
    (finding,) = ahead(timed)
    assert (finding.output, finding.total, finding.witnesses[0].cause) == ("events", 1, "in/0@5")
    assert "sent xid 701 (in/0 up to 8)" in finding.witnesses[0].argument


def test_a_progress_table_that_was_not_observed_is_not_evaluated(timed: Any) -> None:
    timed.scenario["outputs"]["rows"]["progress"] = {"table": "progress", "partition": "part", "end_offset": "done"}
    verdict = judge(timed.save())
    assert verdict.outcome is Outcome.HELD  # a loss would be a lost write
    assert "its progress table progress" in verdict.not_evaluated["commit-ahead-of-effect@rows"]


def test_rewritten_rows_are_not_late(timed: Any) -> None:
    rows = [json.loads(c["content"]) for c in timed.tables["output"] if c["output"] == "rows"]
    timed.commit("rows", *(("delete", row, None) for row in rows), *(("insert", None, row) for row in rows))
    timed.tables["commits"][-1]["commit_time_us"] = 1_009_000_000
    assert ahead(timed) == []
