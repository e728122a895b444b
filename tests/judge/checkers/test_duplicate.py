from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.judge.findings import Finding, Outcome, Verdict
from onceproof.judge.verdict import judge

COPY = {"p": 0, "o": 4, "k": "k0", "n": 10}  # its input is in batch 1


def found(verdict: Verdict) -> list[Finding]:
    """The findings without sink-disagreement: a copy in one output makes it disagree with the other."""
    return [finding for finding in verdict.findings if finding.anomaly != "sink-disagreement"]


def replay(run: Any, committed_by: int | None = 1) -> None:
    for row in run.tables["batches"]:
        if row["batch"] == 1:
            row["committed_by"] = committed_by


def test_a_replayed_batch_in_a_table_is_found(clean_run: Any) -> None:
    replay(clean_run)
    clean_run.insert("rows", COPY, {**COPY, "o": 5, "k": "k1", "n": 11})
    verdict = judge(clean_run.save())
    (finding,) = found(verdict)
    assert (finding.anomaly, finding.output, finding.total, finding.source) == ("duplicate", "rows", 2, "batch replay")
    assert finding.attribution == {"from the replay of batch 1 (query q)": 2}
    assert finding.batches == {"q/1": 2}
    witness = finding.witnesses[0]
    assert witness.identity == {"p": "0", "o": "4"}
    assert (witness.cause, witness.batch) == ("in/0@4", 1)
    assert witness.positions == ("rows xid 701", "rows xid 702")
    assert "planned by driver start 0 and committed by start 1" in witness.argument
    assert verdict.outcome is Outcome.VIOLATED
    assert verdict.anomalies() == {"duplicate": 2, "sink-disagreement": 2}


def test_a_replayed_batch_in_a_topic_is_found(clean_run: Any) -> None:
    replay(clean_run)
    clean_run.record("events", COPY)
    (finding,) = found(judge(clean_run.save()))
    assert (finding.output, finding.total, finding.source) == ("events", 1, "batch replay")
    assert finding.witnesses[0].positions == ("events/0@3", "events/0@6")


def test_two_rows_of_one_transaction_are_not_a_replay(clean_run: Any) -> None:
    replay(clean_run)
    last = [change for change in clean_run.tables["output"] if change["commit_order"] == 1][-1]
    clean_run.tables["output"].append({**last, "offset": 100})
    (finding,) = found(judge(clean_run.save()))
    assert (finding.total, finding.source) == (1, "unknown")


def test_two_records_of_one_transaction_are_not_a_replay(clean_run: Any) -> None:
    """The first attempt was aborted, and the second wrote the record twice."""
    replay(clean_run)
    first = next(r for r in clean_run.tables["output"] if (r["output"], r["offset"]) == ("events", 3))
    clean_run.record("events", COPY)
    second = clean_run.tables["output"][-1]
    transaction = {"producer_id": 3, "producer_epoch": 1, "txn_end_offset": 9, "txn_end_ms": 9_000}
    first.update(transaction)
    second.update(transaction)
    (finding,) = found(judge(clean_run.save()))
    assert (finding.total, finding.source) == (1, "unknown")
    first.update(producer_epoch=0, txn_end_offset=6)
    second["offset"] = 8
    (finding,) = found(judge(clean_run.save()))
    assert (finding.total, finding.source) == (1, "batch replay")


def test_two_records_of_one_transaction_in_two_partitions_are_not_a_replay(clean_run: Any) -> None:
    replay(clean_run)
    first = next(r for r in clean_run.tables["output"] if (r["output"], r["offset"]) == ("events", 3))
    clean_run.record("events", COPY, partition=1)
    second = clean_run.tables["output"][-1]
    for record in (first, second):
        record.update(producer_id=3, producer_epoch=1, txn_end_offset=9, txn_end_ms=9_000)
    (finding,) = found(judge(clean_run.save()))
    assert (finding.total, finding.source) == (1, "unknown")
    second["producer_epoch"] = 2
    (finding,) = found(judge(clean_run.save()))
    assert (finding.total, finding.source) == (1, "batch replay")


@pytest.mark.parametrize(("committed_by", "replays"), [(1, 1), (2, 2), (4, 3)])
def test_each_further_start_explains_one_copy(clean_run: Any, committed_by: int, replays: int) -> None:
    clean_run.scenario["claim"] = {"delivery": "at-least-once"}
    replay(clean_run, committed_by)
    for _ in range(3):
        clean_run.record("events", COPY)
    verdict = judge(clean_run.save())
    sources = {f.source: f.total for f in found(verdict)}
    assert sources == {"batch replay": replays} | ({"unknown": 3 - replays} if replays < 3 else {})
    assert verdict.outcome is (Outcome.HELD if replays == 3 else Outcome.VIOLATED)
    if replays < 3:
        assert "\nNothing in the history explains so many copies.\n" in found(verdict)[0].witnesses[0].argument


@pytest.mark.parametrize(("starts", "source"), [(1, "unknown"), (2, "batch replay")])
def test_a_batch_without_a_commit_was_replayed_if_another_start_followed(
    clean_run: Any, starts: int, source: str
) -> None:
    replay(clean_run, None)
    clean_run.document["job"]["starts"] = starts
    clean_run.record("events", COPY)
    (finding,) = [f for f in judge(clean_run.save()).findings if f.anomaly == "duplicate"]
    assert (finding.total, finding.source) == (1, source)


def test_a_batch_without_a_commit_of_an_unknown_number_of_starts_is_undecided(clean_run: Any) -> None:
    replay(clean_run, None)
    clean_run.scenario["claim"] = {"delivery": "at-least-once", "liveness": "none"}
    del clean_run.document["job"]
    clean_run.record("events", COPY)
    verdict = judge(clean_run.save())
    (finding,) = [f for f in verdict.findings if f.anomaly == "duplicate"]
    assert (finding.source, verdict.outcome) == ("unknown", Outcome.INCONCLUSIVE)
    assert finding.undecided is not None and "how often the job was started" in finding.undecided


def test_a_batch_that_was_not_replayed_explains_no_copy(clean_run: Any) -> None:
    clean_run.record("events", COPY)
    (finding,) = found(judge(clean_run.save()))
    assert (finding.source, finding.attribution) == ("unknown", {"of unknown cause": 1})


def test_a_copy_in_a_struck_batch_is_attributed_to_the_fault(clean_run: Any) -> None:
    clean_run.fault(batch=1)
    clean_run.record("events", COPY)
    (finding,) = found(judge(clean_run.save()))
    assert finding.source == "fault"
    assert finding.attribution == {"from batch 1 (query q), struck by crash driver in batch 1 at after-sink-commit": 1}


def test_copies_of_equal_input_records_come_from_the_input(clean_run: Any) -> None:
    """The oracle expects one effect for equal records; the job writes one for each."""
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
    (finding,) = found(judge(run.save()))
    assert (finding.total, finding.source) == (6, "input")
    assert finding.summary.endswith("more than once; 12 input records equal another in key and value")
    for effect in list(run.tables["output"]):  # two more of each: the two equal records explain one copy
        if effect["output"] == "events":
            run.record("events", json.loads(effect["content"]), partition=effect["partition"])
    assert {f.source: f.total for f in found(judge(run.save()))} == {"input": 6, "unknown": 12}


def test_copies_of_equal_input_records_in_a_replayed_batch(stored_run: Any) -> None:
    """The job writes one effect for each of two equal records, and its batch ran twice: three copies."""
    run = stored_run
    query = 'SELECT k, min(_partition) AS _partition, min(_offset) AS _offset FROM "in" GROUP BY k'
    run.scenario["outputs"] = {"events": {"topic": "events", "identity": ["k"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"events": query}}
    for _ in range(2):
        run.send("k", {"k": "k"})
    for _ in range(4):
        run.record("events", {"k": "k"})
    run.batch(0, {0: (0, 1)}, by=(0, 1))
    run.batch(1, {0: (1, 2)}, by=(1, 2))
    run.progress({0: 2})
    assert {f.source: f.total for f in found(judge(run.save()))} == {"batch replay": 2, "input": 1}
    run.tables["batches"][0]["committed_by"] = 0  # only the twin's batch was replayed
    run.tables["batches"][1]["planned_by"] = 0
    run.tables["batches"][1]["committed_by"] = 1
    assert {f.source: f.total for f in found(judge(run.save()))} == {"input": 2, "unknown": 1}


def test_copies_of_an_input_record_that_its_producer_sent_again(stored_run: Any) -> None:
    """The records are equal including their creation time, and the ledger has only one."""
    run = stored_run
    query = 'SELECT k, n, min(_partition) AS _partition, min(_offset) AS _offset FROM "in" GROUP BY k, n'
    run.scenario["outputs"] = {"events": {"topic": "events", "identity": ["k", "n"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"events": query}}
    for n in (1, 1, 2, 2):
        run.send("k", {"k": "k", "n": n})
        run.record("events", {"k": "k", "n": n})
    run.tables["input"][1]["timestamp_ms"] = run.tables["input"][0]["timestamp_ms"]
    del run.tables["sent"][1]
    run.progress({0: 4})
    findings = found(judge(run.save()))
    assert [(f.anomaly, f.source, f.total) for f in findings] == [
        ("duplicate", "input", 1),
        ("duplicate", "producer retry", 1),
    ]
    assert findings[1].attribution == {"sent twice by the producer of the input": 1}
    assert "holds it again, at in/0@1, with the same creation time" in findings[1].witnesses[0].argument


def with_equal_times(run: Any) -> None:
    """A copy has the creation time of the first record."""
    for record in run.tables["output"]:
        record["timestamp_ms"] = 5_000 + record["offset"]
    run.record("events", COPY)
    first = next(r for r in run.tables["output"] if (r["output"], r["offset"]) == ("events", 3))
    run.tables["output"][-1]["timestamp_ms"] = first["timestamp_ms"]


def test_a_record_that_the_job_s_producer_sent_again(clean_run: Any) -> None:
    with_equal_times(clean_run)
    for record in clean_run.tables["input"]:  # the brokers' logs were read, and name idempotent producers
        record.update(producer_id=3, producer_epoch=0)
    (finding,) = found(judge(clean_run.save()))
    assert (finding.total, finding.source) == (1, "producer retry")
    assert finding.attribution == {"sent twice by the job's producer": 1}
    assert "Both have creation time 5003 ms and one key" in finding.witnesses[0].argument
    for record in clean_run.tables["output"]:  # an idempotent producer's broker drops what is sent again
        record["producer_id"] = 4
    (finding,) = found(judge(clean_run.save()))
    assert finding.source == "unknown"


def test_producers_that_the_history_does_not_know_may_have_sent_a_record_again(clean_run: Any) -> None:
    """Without the brokers' logs no record has a producer, be it idempotent or not."""
    with_equal_times(clean_run)
    clean_run.scenario["claim"] = {"delivery": "at-least-once"}
    verdict = judge(clean_run.save())
    (finding,) = found(verdict)
    assert (finding.total, finding.source, verdict.outcome) == (1, "unknown", Outcome.INCONCLUSIVE)
    assert finding.undecided is not None and "the history names no producers" in finding.undecided
    clean_run.document["imported"] = True
    (finding,) = found(judge(clean_run.save()))
    assert finding.undecided is not None and "the history was imported" in finding.undecided


def with_a_third_batch(run: Any) -> None:
    """Batch 1 was planned by start 0 and committed by start 1, which ran batch 2 as well."""
    replay(run)
    row = {"p": 0, "o": run.send("k0", {"k": "k0", "n": 70}), "k": "k0", "n": 70}
    run.insert("rows", row)
    run.record("events", row)
    run.batch(2, {0: (8, 9)}, by=(1, 1))
    run.tables["progress"][0]["end_offset"] = 9


@pytest.mark.parametrize("output", ["rows", "events"])
def test_a_copy_after_a_later_batch_is_by_a_zombie(clean_run: Any, output: str) -> None:
    with_a_third_batch(clean_run)
    clean_run.insert("rows", COPY) if output == "rows" else clean_run.record("events", COPY)
    (finding,) = [f for f in judge(clean_run.save()).findings if f.anomaly == "duplicate"]
    assert (finding.output, finding.total, finding.source) == (output, 1, "zombie")
    assert finding.attribution == {"from an older driver's late write of batch 1 (query q)": 1}
    assert (
        "start 1 planned and committed batch 2, and one of the copies came after that" in finding.witnesses[0].argument
    )


def test_a_zombie_s_copy_in_another_partition_is_found_by_time(clean_run: Any) -> None:
    with_a_third_batch(clean_run)
    clean_run.document["wall_start"] = 0.0  # batch 2 was committed at 2,500 ms
    clean_run.record("events", COPY, partition=1)
    copy = clean_run.tables["output"][-1]
    for at, source in ((2_500, "batch replay"), (2_501, "zombie")):
        copy["timestamp_ms"] = at
        found = [f for f in judge(clean_run.save()).findings if f.anomaly == "duplicate"]
        assert [f.source for f in found] == [source]


def test_a_copy_staged_before_the_successor_s_and_committed_after_it_is_by_a_zombie(clean_run: Any) -> None:
    with_a_third_batch(clean_run)
    clean_run.document["wall_start"] = 0.0  # batch 2 was committed at 2,500 ms
    for record in clean_run.tables["output"]:
        record["timestamp_ms"] = None if record["partition"] is None else 1_000
    clean_run.record("events", COPY, partition=1)
    first = next(r for r in clean_run.tables["output"] if r["output"] == "events" and r["content"] == json.dumps(COPY))
    clean_run.tables["output"][-1]["timestamp_ms"] = 2_000
    for at, source in ((2_500, "batch replay"), (2_501, "zombie")):
        first.update(txn_end_offset=9, txn_end_ms=at)
        found = [f for f in judge(clean_run.save()).findings if f.anomaly == "duplicate"]
        assert [f.source for f in found] == [source]


def test_a_replay_by_the_start_that_continues_is_not_a_zombie(clean_run: Any) -> None:
    replay(clean_run)
    clean_run.record("events", COPY)
    row = {"p": 0, "o": clean_run.send("k0", {"k": "k0", "n": 70}), "k": "k0", "n": 70}
    clean_run.insert("rows", row)
    clean_run.record("events", row)
    clean_run.batch(2, {0: (8, 9)}, by=(1, 1))
    clean_run.tables["progress"][0]["end_offset"] = 9
    (finding,) = found(judge(clean_run.save()))
    assert finding.source == "batch replay"


def test_a_copy_by_a_retried_task(clean_run: Any) -> None:
    run = clean_run
    run.document["wall_start"] = 0.0  # batch 1 ran from 1,000 to 1,500 ms
    run.fault(batch=1)
    run.record("events", COPY, partition=1)
    for at, source in ((1_200, "task retry"), (1_501, "fault")):
        run.tables["output"][-1]["timestamp_ms"] = at
        (finding,) = [f for f in judge(run.save()).findings if f.anomaly == "duplicate"]
        assert finding.source == source
    run.tables["faults"].clear()
    (finding,) = [f for f in judge(run.save()).findings if f.anomaly == "duplicate"]
    assert finding.source == "unknown"


def test_copies_in_one_commit_while_a_fault_was_active(clean_run: Any) -> None:
    clean_run.fault(batch=1)
    last = [change for change in clean_run.tables["output"] if change["commit_order"] == 1][-1]
    clean_run.tables["output"].append({**last, "offset": 100})
    (finding,) = found(judge(clean_run.save()))
    assert (finding.source, finding.batches) == ("task retry", {"q/1": 1})


def test_two_rows_of_one_identity_in_an_upserted_table_are_found(stored_run: Any) -> None:
    run = stored_run
    run.scenario["outputs"] = {"out": {"table": "out", "identity": ["k"], "kind": "upsert"}}
    query = 'SELECT k, max(_offset) AS o, max(_partition) AS _partition, max(_offset) AS _offset FROM "in" GROUP BY k'
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
    for number in range(2):
        run.insert("out", {"k": f"k{number}", "o": run.send(f"k{number}", {"k": f"k{number}"})})
    run.batch(0, {0: (0, 2)}, by=(0, 1))
    run.progress({0: 2})
    assert judge(run.save()).findings == ()
    run.insert("out", {"k": "k1", "o": 1})
    (finding,) = [f for f in judge(run.save()).findings if f.anomaly == "duplicate"]
    assert (finding.total, finding.source) == (1, "batch replay")
    assert finding.witnesses[0].positions == ("out xid 701", "out xid 702")


def test_copies_in_a_table_with_unknown_commits_have_an_unknown_source(clean_run: Any) -> None:
    """The commits of the copies are unknown: a replay may have written them."""
    rows = [
        {k: str(v) for k, v in json.loads(c["content"]).items()}
        for c in clean_run.tables["output"]
        if c["output"] == "rows"
    ]
    clean_run.snapshot["rows"] = [*rows, {k: str(v) for k, v in COPY.items()}]
    clean_run.scenario["claim"] = {}
    (finding,) = found(judge(clean_run.save()))
    assert finding.source == "unknown"
    replay(clean_run)
    (finding,) = found(judge(clean_run.save()))
    assert finding.source == "batch replay"


def test_each_copy_has_its_own_source(clean_run: Any) -> None:
    replay(clean_run)
    clean_run.record("events", COPY)
    with_a_third_batch(clean_run)
    clean_run.record("events", COPY)
    found = {f.source: f.total for f in judge(clean_run.save()).findings if f.anomaly == "duplicate"}
    assert found == {"batch replay": 1, "zombie": 1}


def test_uncommitted_records_are_not_copies(clean_run: Any) -> None:
    clean_run.record("events", COPY, visibility="aborted")
    clean_run.record("events", COPY, visibility="open")
    assert [f.anomaly for f in judge(clean_run.save()).findings] == ["hanging-transaction"]


def test_at_least_once_allows_known_sources_only(clean_run: Any) -> None:
    clean_run.scenario["claim"] = {"delivery": "at-least-once"}
    clean_run.record("events", COPY)
    assert judge(clean_run.save()).outcome is Outcome.VIOLATED
    replay(clean_run)
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.HELD
    assert verdict.anomalies() == {}
    assert verdict.findings[0].allowed is not None


def test_without_a_cause_the_time_of_a_replayed_batch_decides(stored_run: Any) -> None:
    """Joins and sums: no single input causes a row, but both copies were written between plan and commit of one batch."""
    run = stored_run
    run.document["wall_start"] = 10.0
    run.scenario["outputs"] = {"out": {"table": "out", "identity": ["k"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": 'SELECT k, sum(n) AS n FROM "in" GROUP BY k'}}
    for number in range(3):
        run.send("a", {"k": f"k{number}", "n": number})
        run.insert("out", {"k": f"k{number}", "n": number})
        run.batch(number, {0: (number, number + 1)}, by=(0, 1) if number == 1 else (0, 0))
    run.insert("out", {"k": "k1", "n": 1})
    for commit, ms in zip(run.tables["commits"], (10_200, 11_200, 12_200, 11_400), strict=True):
        commit["commit_time_us"] = 1000 * ms
    run.progress({0: 3})
    (finding,) = [f for f in judge(run.save()).findings if f.anomaly == "duplicate"]
    assert (finding.source, finding.total, finding.batches) == ("batch replay", 1, {"q/1": 1})
    run.tables["commits"][3]["commit_time_us"] = 12_300_000
    (finding,) = [f for f in judge(run.save()).findings if f.anomaly == "duplicate"]
    assert (finding.source, finding.batches) == ("unknown", {})
