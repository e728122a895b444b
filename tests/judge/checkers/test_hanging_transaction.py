from __future__ import annotations

from typing import Any

import pytest

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge


def hang(run: Any, topic: str, offset: int, end: int) -> None:
    """Make the records of partition 0 of that topic open, from ``offset`` on; the first is by producer 41."""
    table, column = ("input", "topic") if topic == "in" else ("output", "output")
    records = [r for r in run.tables[table] if r[column] == topic and r["partition"] == 0 and r["offset"] >= offset]
    for number, record in enumerate(records):
        record.update(visibility="open", timestamp_ms=1_500, producer_id=41 + number, producer_epoch=3)
    log(run, topic, offset, end)


def log(run: Any, topic: str, stable: int, end: int) -> None:
    ends = {"start_offset": 0, "stable_offset": stable, "end_offset": end, "collected_ms": 62_000}
    run.add("partitions", {"topic": topic, "partition": 0, **ends})


def test_an_open_transaction_in_an_output_is_found(clean_run: Any) -> None:
    hang(clean_run, "events", 4, 6)
    verdict = judge(clean_run.save())
    (finding,) = [f for f in verdict.findings if f.anomaly == "hanging-transaction"]
    assert (finding.output, finding.total, finding.attribution) == ("events", 2, {"in events/0 from offset 4": 2})
    (witness,) = finding.witnesses
    assert witness.positions == ("events/0@4",)
    assert witness.argument.splitlines() == [
        "A transaction of producer 41 (epoch 3) wrote events/0@4, 60.5 s before the end of the run; "
        "it has neither been committed nor aborted.",
        "But readers get no further than offset 4 of 6: 2 records cannot be read.",
    ]
    assert verdict.outcome is Outcome.VIOLATED


def test_committed_records_after_an_open_transaction_cannot_be_read_either(clean_run: Any) -> None:
    """The history may list them as committed, but no read_committed reader sees them."""
    hang(clean_run, "events", 4, 6)
    for record in clean_run.tables["output"]:
        if (record["output"], record["partition"], record["offset"]) == ("events", 0, 5):
            record["visibility"] = "committed"
    (finding,) = [f for f in judge(clean_run.save()).findings if f.anomaly == "hanging-transaction"]
    assert finding.total == 2


def test_an_open_transaction_in_the_input_is_found(clean_run: Any) -> None:
    offset = clean_run.send("k0", {"k": "k0", "n": 50}, visibility="open")
    log(clean_run, "in", offset, offset + 1)
    (finding,) = judge(clean_run.save()).findings
    assert (finding.anomaly, finding.output, finding.total) == ("hanging-transaction", "in", 1)
    assert "an unknown producer wrote in/0@8, 61.0 s before" in finding.witnesses[0].argument


def test_a_history_without_partitions_is_not_evaluated(clean_run: Any) -> None:
    clean_run.record("events", {"p": 0, "o": 90, "k": "k0", "n": 1}, visibility="open")
    (finding,) = judge(clean_run.save()).findings
    assert (finding.anomaly, finding.attribution) == ("hanging-transaction", {"in events/0 from offset 6": 1})


@pytest.mark.parametrize("visibility", ["committed", "aborted"])
def test_ended_transactions_do_not_hang(clean_run: Any, visibility: str) -> None:
    clean_run.send("k0", {"k": "k0", "n": -1}, visibility=visibility)
    clean_run.tables["input"][-1]["txn_end_ms"] = 2_000
    if visibility == "aborted":
        clean_run.record("events", {"p": 0, "o": 4, "k": "k0", "n": 10}, visibility=visibility)
    log(clean_run, "events", 7, 7)
    assert judge(clean_run.save()).outcome is Outcome.HELD


def test_a_stable_offset_below_a_marker_hides_no_record(clean_run: Any) -> None:
    log(clean_run, "events", 6, 7)
    assert judge(clean_run.save()).outcome is Outcome.HELD


def test_an_open_record_below_the_stable_offset_is_reported(clean_run: Any) -> None:
    """The history contradicts itself, but the record's effect is missing, so it must be reported."""
    hang(clean_run, "events", 5, 6)
    clean_run.tables["partitions"][-1]["stable_offset"] = 6
    (finding,) = [f for f in judge(clean_run.save()).findings if f.anomaly == "hanging-transaction"]
    assert (finding.total, finding.attribution) == (1, {"in events/0 from offset 5": 1})
