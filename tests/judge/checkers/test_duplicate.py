from __future__ import annotations

import json
from typing import Any

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge

COPY = {"p": 0, "o": 4, "k": "k0", "n": 10}  # its input lies in batch 1


def replay(run: Any) -> None:
    for row in run.tables["batches"]:
        if row["batch"] == 1:
            row["committed_by"] = 1


def test_replayed_batch_in_a_table(clean_run: Any) -> None:
    replay(clean_run)
    clean_run.insert("rows", COPY, {**COPY, "o": 5, "k": "k1", "n": 11})
    verdict = judge(clean_run.save())
    (finding,) = verdict.findings
    assert (finding.anomaly, finding.output, finding.total, finding.source) == ("duplicate", "rows", 2, "batch replay")
    assert finding.attribution == {"batch replay (query q, batch 1)": 2}
    witness = finding.witnesses[0]
    assert witness.identity == {"p": "0", "o": "4"}
    assert (witness.cause, witness.batch) == ("in/0@4", 1)
    assert witness.positions == ("rows xid 701", "rows xid 702")
    assert "planned by driver start 0 and committed by start 1" in witness.argument
    assert verdict.outcome is Outcome.VIOLATED
    assert verdict.anomalies() == {"duplicate": 2}


def test_replayed_batch_in_a_topic(clean_run: Any) -> None:
    replay(clean_run)
    clean_run.record("events", COPY)
    (finding,) = judge(clean_run.save()).findings
    assert (finding.output, finding.total, finding.source) == ("events", 1, "batch replay")
    assert finding.witnesses[0].positions == ("events/0@3", "events/0@6")


def test_two_rows_of_one_transaction_are_no_replay(clean_run: Any) -> None:
    replay(clean_run)
    last = [change for change in clean_run.tables["output"] if change["commit_order"] == 1][-1]
    clean_run.tables["output"].append({**last, "offset": 100})
    (finding,) = judge(clean_run.save()).findings
    assert (finding.total, finding.source) == (1, "unknown")


def test_batch_that_was_not_replayed_explains_nothing(clean_run: Any) -> None:
    clean_run.record("events", COPY)
    (finding,) = judge(clean_run.save()).findings
    assert (finding.source, finding.attribution) == ("unknown", {"unknown": 1})


def test_fault_in_its_batch(clean_run: Any) -> None:
    clean_run.fault(batch=1)
    clean_run.record("events", COPY)
    (finding,) = judge(clean_run.save()).findings
    assert finding.source == "fault"
    assert finding.attribution == {"while crash driver in batch 1 at after-sink-commit": 1}


def test_input_that_holds_a_record_twice(clean_run: Any) -> None:
    """The oracle wants one effect of equal records; the job gives each its own."""
    query = 'SELECT k, n, 0 AS p, min(_offset) AS o, 0 AS _partition, min(_offset) AS _offset, k AS _key FROM "in" GROUP BY ALL'
    run = clean_run
    run.scenario["outputs"] = {"events": {"topic": "events", "identity": ["k", "n"], "ignore": ["p", "o"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"events": query}}
    for record in run.tables["input"]:
        if record["partition"] == 1:  # the same records as in partition 0
            record["value"] = json.dumps(
                {**json.loads(record["value"]), "n": json.loads(record["value"])["n"] - 100}
            ).encode()
    for effect in run.tables["output"]:
        row = json.loads(effect["content"])
        effect["content"] = json.dumps({**row, "n": int(row["n"]) % 100})
    (finding,) = judge(run.save()).findings
    assert (finding.total, finding.source) == (6, "input")


def test_records_that_are_not_committed_are_no_copies(clean_run: Any) -> None:
    clean_run.record("events", COPY, visibility="aborted")
    clean_run.record("events", COPY, visibility="open")
    assert judge(clean_run.save()).findings == ()


def test_at_least_once_allows_known_sources_only(clean_run: Any) -> None:
    clean_run.scenario["claim"] = {"delivery": "at-least-once"}
    clean_run.record("events", COPY)
    assert judge(clean_run.save()).outcome is Outcome.VIOLATED
    replay(clean_run)
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.HELD
    assert verdict.anomalies() == {}
    assert verdict.findings[0].allowed is not None
