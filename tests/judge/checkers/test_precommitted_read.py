from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge


def timed(run: Any) -> Any:
    """Each input record is in a transaction that ended one second before the commit of its batch."""
    for record in run.tables["input"]:
        record.update(producer_id=9, producer_epoch=0, txn_end_ms=10_000 + 2_000 * (record["offset"] // 4))
    for commit in run.tables["commits"]:
        commit["commit_time_us"] = 1_000 * (11_000 + 2_000 * commit["commit_order"])
    for record in run.tables["output"]:
        if record["output"] == "events":
            record["timestamp_ms"] = 11_000 + 2_000 * (json.loads(record["content"])["o"] // 4)
    return run


def ended(run: Any, partition: int, offset: int, ms: int) -> None:
    for record in run.tables["input"]:
        if (record["partition"], record["offset"]) == (partition, offset):
            record["txn_end_ms"] = ms


def test_an_effect_after_its_input_s_commit_is_no_finding(clean_run: Any) -> None:
    assert judge(timed(clean_run).save()).outcome is Outcome.HELD


def test_an_effect_visible_before_its_input_s_marker_is_found(clean_run: Any) -> None:
    run = timed(clean_run)
    ended(run, 0, 5, 13_001)
    verdict = judge(run.save())
    assert [(f.anomaly, f.output, f.total) for f in verdict.findings] == [
        ("precommitted-read", "events", 1),
        ("precommitted-read", "rows", 1),
    ]
    events, rows = verdict.findings
    assert (events.attribution, events.batches) == ({"visible before the marker": 1}, {"q/1": 1})
    (witness,) = events.witnesses
    assert (witness.identity, witness.cause, witness.batch) == ({"p": "0", "o": "5"}, "in/0@5", 1)
    assert witness.positions == ("events/0@4",)
    assert witness.argument == (
        "The transaction of input in/0@5 was committed at 13001 ms, the time of its marker.\n"
        "But its record could be read 1 ms earlier, at events/0@4."
    )
    assert rows.witnesses[0].positions == ("rows xid 701",)
    assert verdict.outcome is Outcome.VIOLATED


def test_the_same_millisecond_proves_nothing(clean_run: Any) -> None:
    run = timed(clean_run)
    ended(run, 0, 5, 13_000)
    assert judge(run.save()).outcome is Outcome.HELD


def test_an_effect_in_a_transaction_is_visible_when_that_ends(clean_run: Any) -> None:
    run = timed(clean_run)
    ended(run, 0, 5, 13_001)
    run.tables["output"] = [row for row in run.tables["output"] if row["output"] == "events"]
    del run.scenario["outputs"]["rows"], run.scenario["oracle"]["queries"]["rows"]
    for record in run.tables["output"]:
        record.update(producer_id=3, producer_epoch=0, txn_end_offset=20, txn_end_ms=14_000)
    assert judge(run.save()).outcome is Outcome.HELD


@pytest.mark.parametrize("output", ["rows", "events"])
def test_an_effect_of_a_transaction_that_has_not_ended_is_found(clean_run: Any, output: str) -> None:
    run = timed(clean_run)
    row = {"p": 0, "o": run.send("k0", {"k": "k0", "n": 50}, visibility="open"), "k": "k0", "n": 50}
    run.insert("rows", row) if output == "rows" else run.record("events", row)
    run.tables["commits"][-1]["commit_time_us"] = 20_000_000
    found = [f for f in judge(run.save()).findings if f.anomaly != "hanging-transaction"]
    (finding,) = found
    assert (finding.anomaly, finding.output, finding.total) == ("precommitted-read", output, 1)
    assert finding.attribution == {"its transaction has not ended": 1}
    assert finding.witnesses[0].cause == "in/0@8"
    assert finding.witnesses[0].positions == (("rows xid 702",) if output == "rows" else ("events/0@6",))


def summed(run: Any) -> Any:
    """An output without causes: the batch decides."""
    run.document["wall_start"] = 10.0  # batch 0 was committed at 10,500 ms
    run.scenario["outputs"] = {"out": {"table": "out", "identity": ["k"], "kind": "upsert"}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": 'SELECT k, sum(n) AS total FROM "in" GROUP BY k'}}
    for n in (1, 2):
        run.send("a", {"k": "a", "n": n})
        run.tables["input"][-1].update(producer_id=9, txn_end_offset=2, txn_end_ms=10_400)
    run.batch(0, {0: (0, 3)})
    run.progress({0: 3})
    run.insert("out", {"k": "a", "total": 3})
    return run


def test_a_batch_committed_before_its_input_s_marker_is_found(stored_run: Any) -> None:
    run = summed(stored_run)
    assert judge(run.save()).outcome is Outcome.HELD
    ended(run, 0, 1, 10_501)
    (finding,) = judge(run.save()).findings
    assert (finding.anomaly, finding.total, finding.batches) == ("precommitted-read", 1, {"q/0": 1})
    (witness,) = finding.witnesses
    assert (witness.cause, witness.batch) == ("in/0@1", 0)
    assert witness.argument.splitlines()[1:] == [
        "Batch 0 of query q read that record.",
        "But the batch was committed 1 ms earlier.",
    ]


def test_unknown_markers_are_not_evaluated(clean_run: Any) -> None:
    clean_run.send("k0", {"k": "k0", "n": 50}, visibility="aborted")
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.HELD  # anything read too early was committed in the end
    assert "does not record when its transactions ended" in verdict.not_evaluated["precommitted-read@rows"]


@pytest.mark.parametrize(
    ("end", "start", "producer", "why"),
    [
        (9, 0, None, "(in/0 holds 2 offsets without a record)"),
        (8, 0, None, "(in/0 holds 1 offset without a record)"),
        (7, 0, None, None),
        (7, 3, None, None),
        (9, 0, -1, None),
    ],
    ids=["two markers", "one marker", "no marker", "removed records", "read from the log"],
)
def test_committed_input_of_an_unread_log_may_be_transactional(
    stored_run: Any, end: int, start: int, producer: int | None, why: str | None
) -> None:
    run = stored_run
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["i"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": 'SELECT i, _partition, _offset FROM "in"'}}
    for i in range(7):
        run.send(None, {"i": i})
        run.tables["input"][-1]["producer_id"] = producer
        run.record("out", {"i": i})
    run.add(
        "partitions", {"topic": "in", "partition": 0, "start_offset": start, "stable_offset": end, "end_offset": end}
    )
    run.progress({0: end})
    verdict = judge(run.save())
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    found = verdict.not_evaluated.get("precommitted-read@out")
    assert found == (
        why and f"some input may be transactional {why}, and the history does not record when its transactions ended"
    )


def test_input_without_transactions_needs_no_markers(clean_run: Any) -> None:
    assert judge(clean_run.save()).not_evaluated == {}


def test_an_older_state_does_not_hold_a_later_record(stored_run: Any) -> None:
    """A state of an upsert from before the record's transaction ended is at most a wrong value, if it stays."""
    run = stored_run
    for n in (1, 2):
        run.send("a", {"k": "a", "n": n})
        run.tables["input"][-1].update(producer_id=9, producer_epoch=0, txn_end_ms=1_000 * n)
    run.scenario["outputs"] = {"out": {"table": "out", "identity": ["k"], "kind": "upsert"}}
    query = 'SELECT k, max(n) AS n, any_value(_partition) AS _partition, max(_offset) AS _offset FROM "in" GROUP BY k'
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
    run.insert("out", {"k": "a", "n": 1})
    run.tables["commits"][-1]["commit_time_us"] = 1_500_000
    run.progress({0: 2})
    assert judge(run.save()).anomalies() == {"wrong-value": 1}
