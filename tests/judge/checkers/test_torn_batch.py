from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.judge.findings import Finding, Outcome
from onceproof.judge.verdict import judge


def torn(run: Any) -> list[Finding]:
    return [f for f in judge(run.save()).findings if f.anomaly == "torn-batch"]


def records(run: Any) -> list[dict[str, Any]]:
    return [c for c in run.tables["output"] if c["output"] == "events"]


def in_transactions(run: Any) -> Any:
    """Each batch of the topic is one transaction, across both partitions, with its own producer epoch."""
    for record in records(run):
        batch = int(json.loads(record["content"])["o"] >= 4)
        produced = {"producer_id": 9, "producer_epoch": batch, "timestamp_ms": 1000 * (batch + 1) + record["offset"]}
        record.update(produced, txn_end_offset=100 + batch, txn_end_ms=1000 * (batch + 1) + 500)
    run.scenario["claim"] = {"order": "per-key", "atomic": "batch"}
    return run


def split_commit(run: Any, offset: int) -> None:
    """Give the row of input 0@offset a commit of its own, after the rest of its batch and before the next batch."""
    changes = [c for c in run.tables["output"] if c["output"] == "rows"]
    (row,) = [
        c for c in changes if json.loads(c["content"])["p"] == "0" and json.loads(c["content"])["o"] == str(offset)
    ]
    for change in changes:
        if change["commit_order"] == 1:
            change.update(commit_order=2, xid=702)
    row.update(commit_order=1, xid=701)
    for commit in run.tables["commits"]:
        if commit["commit_order"] == 1:
            commit.update(commit_order=2, xid=702)
    run.tables["commits"].insert(1, {**run.tables["commits"][0], "commit_order": 1, "xid": 701})
    order = {"rows": 0, "events": 1}
    run.tables["output"].sort(key=lambda c: (order[c["output"]], c["commit_order"] or 0, c["partition"] or 0))
    for position, change in enumerate(c for c in run.tables["output"] if c["output"] == "rows"):
        change["offset"] = position


def test_batches_in_one_commit_and_one_transaction_each_are_not_torn(clean_run: Any) -> None:
    verdict = judge(in_transactions(clean_run).save())
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    assert verdict.findings == ()


def test_a_batch_in_two_commits_is_torn(clean_run: Any) -> None:
    in_transactions(clean_run)
    split_commit(clean_run, 2)
    verdict = judge(clean_run.save())
    assert verdict.anomalies() == {"torn-batch": 1}
    (finding,) = verdict.findings
    assert (finding.output, finding.total, finding.source, finding.transient) == ("rows", 1, "batch", True)
    assert finding.batches == {"q/0": 1}
    (witness,) = finding.witnesses
    assert (witness.cause, witness.batch, witness.positions) == ("in/0@2", 0, ("rows xid 700", "rows xid 701"))
    assert witness.argument == (
        "Batch 0 of query q is one unit; other rows of it became visible at rows xid 700.\n"
        "But the row of in/0@2 became visible at rows xid 701: readers saw one without the other."
    )


@pytest.mark.parametrize(
    ("atomic", "reason"),
    [("none", "transient: no atomicity is claimed"), ("transaction", "atomicity is claimed for transactions")],
)
def test_a_batch_in_two_commits_is_allowed_without_the_claim(clean_run: Any, atomic: str, reason: str) -> None:
    in_transactions(clean_run)
    split_commit(clean_run, 2)
    clean_run.scenario["claim"]["atomic"] = atomic
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    (finding,) = verdict.findings
    assert (finding.allowed or "").startswith(reason)


def test_the_replay_of_a_whole_batch_does_not_tear_it(clean_run: Any) -> None:
    in_transactions(clean_run)
    last = [json.loads(c["content"]) for c in clean_run.tables["output"] if c["output"] == "rows" and c["commit_order"]]
    clean_run.insert("rows", last[0])
    clean_run.insert("rows", *last[1:3])
    verdict = judge(clean_run.save())
    assert verdict.anomalies() == {"duplicate": 3, "sink-disagreement": 3}
    assert torn(clean_run) == []


def test_a_batch_in_two_transactions_is_torn(clean_run: Any) -> None:
    in_transactions(clean_run)
    late = [r for r in records(clean_run) if r["partition"] == 1 and r["producer_epoch"] == 0]
    for record in late:
        record.update(producer_epoch=7, txn_end_offset=99, txn_end_ms=1600)
    (finding,) = torn(clean_run)
    assert (finding.output, finding.total, finding.transient, finding.allowed) == ("events", 3, True, None)
    assert finding.witnesses[0].positions == ("events/0@0", "events/1@0")


def test_one_producer_epoch_in_one_partition_with_two_transactions(clean_run: Any) -> None:
    in_transactions(clean_run)
    for record in records(clean_run):
        record.update(producer_epoch=0)
        if json.loads(record["content"]) == {"p": 0, "o": 2, "k": "k2", "n": 2}:
            record.update(txn_end_offset=98, txn_end_ms=1600)
    (finding,) = torn(clean_run)
    assert (finding.total, finding.witnesses[0].cause) == (1, "in/0@2")


def test_transactions_of_a_producer_that_keeps_its_epoch(clean_run: Any) -> None:
    """Records created in overlapping times belong to one transaction, whatever partition they are in."""
    in_transactions(clean_run)
    for record in records(clean_run):
        record.update(producer_epoch=0)
    verdict = judge(clean_run.save())
    assert (verdict.outcome, verdict.findings, verdict.not_evaluated) == (Outcome.HELD, (), {})


def test_successive_transactions_of_one_producer_are_distinguished(clean_run: Any) -> None:
    """A record created after the marker of a transaction belongs to another transaction."""
    in_transactions(clean_run)
    for record in records(clean_run):
        record.update(producer_epoch=0)
        if record["partition"] == 1 and record["txn_end_offset"] == 100:
            record.update(timestamp_ms=1700 + record["offset"], txn_end_ms=1800)
    (finding,) = torn(clean_run)
    assert (finding.total, finding.witnesses[0].positions) == (3, ("events/0@0", "events/1@0"))


def test_transactions_that_cannot_be_distinguished_are_not_evaluated(clean_run: Any) -> None:
    in_transactions(clean_run)
    for record in records(clean_run):
        record.update(producer_epoch=0)
        if record["partition"] == 1 and record["txn_end_offset"] == 100:
            record.update(timestamp_ms=1100 + record["offset"])
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "does not separate them across partitions" in verdict.not_evaluated["torn-batch@events"]


@pytest.mark.parametrize(("ended_ms", "outcome"), [(1_900, Outcome.HELD), (4_300, Outcome.INCONCLUSIVE)])
def test_equal_times_that_the_job_sets_do_not_join_transactions(
    clean_run: Any, ended_ms: int, outcome: Outcome
) -> None:
    """All records of a batch have one time, which advances with each batch, but the markers in two partitions are far apart."""
    in_transactions(clean_run)
    for record in records(clean_run):
        batch = record["producer_epoch"]
        record.update(producer_epoch=0, timestamp_ms=1_000 + 10_000 * batch, txn_end_ms=1_500 + 10_000 * batch)
        if record["partition"] == 1:
            record.update(txn_end_ms=ended_ms + 10_000 * batch)
    verdict = judge(clean_run.save())
    assert verdict.outcome is outcome, verdict.reasons
    if outcome is Outcome.INCONCLUSIVE:
        assert "does not separate them across partitions" in verdict.not_evaluated["torn-batch@events"]


def test_records_outside_of_transactions_are_torn(clean_run: Any) -> None:
    in_transactions(clean_run)
    for record in records(clean_run):
        record.update(txn_end_offset=None, txn_end_ms=None, producer_epoch=0)
    (finding,) = torn(clean_run)
    assert (finding.output, finding.total, finding.transient, finding.allowed) == ("events", 10, True, None)
    clean_run.scenario["claim"]["atomic"] = "none"
    assert judge(clean_run.save()).findings == ()


def test_records_with_unknown_transactions_are_not_evaluated(clean_run: Any) -> None:
    clean_run.scenario["claim"]["atomic"] = "batch"
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "written in a transaction" in verdict.not_evaluated["torn-batch@events"]
    assert "torn-batch@rows" not in verdict.not_evaluated


def test_a_log_without_gaps_has_no_transactions(clean_run: Any) -> None:
    """A marker takes an offset: if records have all offsets, there was no transaction."""
    clean_run.scenario["claim"]["atomic"] = "batch"
    for partition in range(2):
        where = {"topic": "events", "partition": partition, "start_offset": 0, "collected_ms": 0}
        clean_run.add("partitions", {**where, "stable_offset": 6, "end_offset": 6})
    (finding,) = torn(clean_run)
    assert (finding.output, finding.total) == ("events", 10)


def test_a_batch_with_a_missing_effect_is_torn(clean_run: Any) -> None:
    in_transactions(clean_run)
    gone = next(r for r in records(clean_run) if json.loads(r["content"])["o"] == 5)
    clean_run.tables["output"].remove(gone)
    (finding,) = torn(clean_run)
    assert (finding.output, finding.total, finding.transient, finding.allowed) == ("events", 1, False, None)
    assert finding.batches == {"q/1": 1}
    assert finding.witnesses[0].argument == (
        "Batch 1 of query q is one unit. It read in/0@4 and in/0@5.\n"
        "The record of in/0@4 is there, but that of in/0@5 is missing."
    )
    clean_run.scenario["claim"]["atomic"] = "none"
    verdict = judge(clean_run.save())
    assert "torn-batch" not in verdict.anomalies()
    assert verdict.anomalies()["lost-write"] == 1


def test_a_batch_that_is_missing_completely_is_not_torn(clean_run: Any) -> None:
    in_transactions(clean_run)
    clean_run.tables["output"] = [
        c for c in clean_run.tables["output"] if c["output"] == "rows" or json.loads(c["content"])["o"] < 4
    ]
    assert torn(clean_run) == []
    assert judge(clean_run.save()).anomalies()["lost-write"] == 6


def test_at_most_once_does_not_allow_half_a_batch_that_is_claimed_to_be_atomic(clean_run: Any) -> None:
    in_transactions(clean_run)
    clean_run.scenario["claim"]["delivery"] = "at-most-once"
    clean_run.fault(batch=1)
    clean_run.tables["output"].remove(next(r for r in records(clean_run) if json.loads(r["content"])["o"] == 5))
    assert judge(clean_run.save()).anomalies() == {"torn-batch": 1}


@pytest.mark.parametrize("visibility", ["aborted", "open"])
@pytest.mark.parametrize(("atomic", "violates"), [("transaction", True), ("batch", True), ("none", False)])
def test_a_partly_committed_transaction_is_torn(clean_run: Any, visibility: str, atomic: str, violates: bool) -> None:
    in_transactions(clean_run)
    clean_run.scenario["claim"]["atomic"] = atomic
    for record in records(clean_run):
        if record["partition"] == 1 and record["producer_epoch"] == 1:
            record.update(visibility=visibility)
            if visibility == "open":
                record.update(txn_end_offset=None, txn_end_ms=None)
    (finding,) = [f for f in torn(clean_run) if f.source == "transaction"]
    assert (finding.output, finding.total, finding.allowed is None) == ("events", 3, violates)
    assert finding.witnesses[0].positions == ("events/0@3", "events/1@3")
    assert f"the second {'still open' if visibility == 'open' else visibility}" in finding.witnesses[0].argument


def test_an_aborted_transaction_before_a_committed_one_is_not_torn(clean_run: Any) -> None:
    """A producer that keeps its epoch may abort one transaction and commit the next."""
    in_transactions(clean_run)
    aborted = {"producer_id": 9, "producer_epoch": 0, "timestamp_ms": 900, "txn_end_offset": 50, "txn_end_ms": 950}
    clean_run.record("events", {"p": 0, "o": 0, "k": "k0", "n": 0}, visibility="aborted")
    clean_run.tables["output"][-1].update(aborted)
    clean_run.scenario["claim"]["atomic"] = "transaction"
    assert torn(clean_run) == []


@pytest.mark.parametrize("atomic", ["transaction", "batch"])
def test_a_batch_that_is_written_twice_with_times_of_the_job_is_not_torn(clean_run: Any, atomic: str) -> None:
    """The job sets the time of each record, and one of two attempts of a batch was aborted: its times overlap the other's."""
    in_transactions(clean_run)
    clean_run.scenario["claim"]["atomic"] = atomic
    for record in [one for one in records(clean_run) if one["producer_epoch"] == 1]:
        clean_run.record("events", json.loads(record["content"]), visibility="aborted")
        again = {name: record[name] for name in ("producer_id", "producer_epoch", "timestamp_ms")}
        clean_run.tables["output"][-1].update(again, txn_end_offset=200, txn_end_ms=2900)
    verdict = judge(clean_run.save())
    assert [one for one in verdict.findings if one.anomaly == "torn-batch"] == []
    gap = verdict.not_evaluated["torn-batch@events"]
    assert (
        "1 producer epoch has both committed and other records" if atomic == "transaction" else "does not separate"
    ) in gap
    assert verdict.outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("times", [(10, 20), (10, 10)])
def test_two_attempts_with_one_time_in_each_partition_are_not_torn(clean_run: Any, times: tuple[int, int]) -> None:
    """One record per partition and attempt, or one event time in each: the times of the second attempt are those of the first."""
    in_transactions(clean_run)
    clean_run.scenario["claim"]["atomic"] = "transaction"
    for record in [one for one in records(clean_run) if one["producer_epoch"] == 1]:
        record["timestamp_ms"] = times[record["partition"]]
    for record in [one for one in records(clean_run) if one["producer_epoch"] == 1]:
        clean_run.record("events", json.loads(record["content"]), visibility="aborted")
        again = {name: record[name] for name in ("producer_id", "producer_epoch", "timestamp_ms")}
        clean_run.tables["output"][-1].update(again, txn_end_offset=200, txn_end_ms=2900)
    assert torn(clean_run) == []


def test_a_batch_whose_parts_have_times_of_the_job_is_not_called_whole(clean_run: Any) -> None:
    """Part of a transaction was aborted, and written again in the next one. The log shows only the times that the job has set."""
    in_transactions(clean_run)
    for record in [one for one in records(clean_run) if one["producer_epoch"] == 1 and one["partition"] == 1]:
        clean_run.record("events", json.loads(record["content"]), visibility="aborted")
        again = {name: record[name] for name in ("producer_id", "producer_epoch", "timestamp_ms")}
        place = {"partition": 1, "offset": record["offset"]}
        clean_run.tables["output"][-1].update(again, **place, txn_end_offset=101, txn_end_ms=2500)
        record.update(offset=record["offset"] + 4, txn_end_offset=200, txn_end_ms=32_500)
    ours = sorted(records(clean_run), key=lambda record: (record["partition"], record["offset"]))
    clean_run.tables["output"] = [c for c in clean_run.tables["output"] if c["output"] != "events"] + ours
    verdict = judge(clean_run.save())
    assert verdict.outcome is not Outcome.HELD


def test_a_claim_about_transactions_is_not_evaluated_for_records_outside_of_them(clean_run: Any) -> None:
    in_transactions(clean_run)
    clean_run.scenario["claim"]["atomic"] = "transaction"
    records(clean_run)[0].update(txn_end_offset=None, txn_end_ms=None)
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.not_evaluated == {"torn-batch@events": "1 record is outside of any transaction"}


def test_commits_that_were_not_decoded_are_not_evaluated(clean_run: Any) -> None:
    in_transactions(clean_run)
    clean_run.scenario["claim"]["order"] = "none"
    clean_run.snapshot["rows"] = clean_run._replayed("rows")
    clean_run.tables["output"] = [c for c in clean_run.tables["output"] if c["output"] != "rows" or c["commit_order"]]
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "do not replay to its snapshot" in verdict.not_evaluated["torn-batch@rows"]


def test_run_without_batches(clean_run: Any) -> None:
    in_transactions(clean_run)
    clean_run.tables["batches"].clear()
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "which batches wrote it" in verdict.not_evaluated["torn-batch@rows"]


def written_again(run: Any, *commits_ms: int) -> Any:
    """Update a column that is not compared in a commit of its own, and give all commits these times."""
    run.scenario["claim"] = {"atomic": "batch"}
    run.scenario["outputs"]["rows"]["ignore"] = ["seen"]
    run.document["wall_start"] = 0
    row = json.loads(next(c["content"] for c in run.tables["output"] if c["output"] == "rows"))
    run._commits = len(run.tables["commits"])
    run.commit("rows", ("update", row, {**row, "seen": "1"}))
    for commit, at_ms in zip(run.tables["commits"], commits_ms, strict=True):
        commit["commit_time_us"] = 1_000 * at_ms
    return run


def test_a_row_that_was_written_again_does_not_tear_its_batch(clean_run: Any) -> None:
    """By cause, the update would be a second step of batch 0; by time, it is in no batch."""
    run = written_again(in_transactions(clean_run), 200, 1_200, 1_800)
    verdict = judge(run.save())
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    run.tables["commits"][1]["commit_time_us"] = 300_000  # the commit of batch 1, during batch 0
    verdict = judge(run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "not known which batch wrote what" in verdict.not_evaluated["torn-batch@rows"]


def test_a_batch_in_two_commits_is_torn_although_a_row_was_written_again(clean_run: Any) -> None:
    split_commit(in_transactions(clean_run), 2)
    (finding,) = torn(written_again(clean_run, 200, 300, 1_200, 1_800))
    assert (finding.total, finding.batches) == (1, {"q/0": 1})
    assert finding.witnesses[0].identity == {"p": "0", "o": "2"}


def partly_caused(run: Any, condition: str) -> Any:
    """The oracle names causes where the condition holds. Batch N runs from N to N + 0.5, and commits at N + 0.2."""
    cause = f"CASE WHEN {condition} THEN _offset END AS _offset"
    query = f'SELECT _partition AS p, _offset AS o, k, n, _topic, _partition, {cause} FROM "in"'
    run.scenario["outputs"].pop("events")
    run.tables["output"] = [c for c in run.tables["output"] if c["output"] == "rows"]
    run.scenario["oracle"]["queries"] = {"rows": query}
    run.scenario["claim"] = {"atomic": "batch"}
    run.document["wall_start"] = 0
    for order, commit in enumerate(run.tables["commits"]):
        commit["commit_time_us"] = 200_000 if order == 0 else 1_200_000 + 1_000 * order
    return run


@pytest.mark.parametrize("condition", ["false", "_offset <> 2 OR _partition = 1"])
def test_rows_without_a_cause_belong_to_batches_by_time(clean_run: Any, condition: str) -> None:
    """The oracle names no cause of the row that is late, or of any row."""
    split_commit(clean_run, 2)
    run = partly_caused(clean_run, condition)
    run.tables["commits"][1]["commit_time_us"] = 300_000
    (finding,) = torn(run)
    assert (finding.output, finding.total, finding.batches) == ("rows", 1, {"q/0": 1})
    assert finding.witnesses[0].identity == {"p": "0", "o": "2"}
    run.tables["commits"][1]["commit_time_us"] = 700_000
    verdict = judge(run.save())
    assert (verdict.outcome, verdict.findings) == (Outcome.INCONCLUSIVE, ())
    assert "while no batch of query q was running" in verdict.not_evaluated["torn-batch@rows"]


def test_whole_batches_with_rows_without_a_cause_are_not_torn(clean_run: Any) -> None:
    verdict = judge(partly_caused(clean_run, "_offset <> 2").save())
    assert (verdict.outcome, verdict.findings) == (Outcome.HELD, ()), verdict.reasons


def test_causes_show_a_torn_batch_that_times_do_not_show(clean_run: Any) -> None:
    split_commit(clean_run, 2)
    verdict = judge(partly_caused(clean_run, "_offset <> 1").save())
    finding = next(f for f in verdict.findings if f.anomaly == "torn-batch")
    assert (finding.total, finding.batches, finding.witnesses[0].cause) == (1, {"q/0": 1}, "in/0@2")
    assert verdict.not_evaluated["torn-batch@rows"] == "2 expected rows have no cause (_partition, _offset)"


def test_rows_whose_input_is_in_no_known_batch_are_not_evaluated(clean_run: Any) -> None:
    split_commit(clean_run, 6)
    run = partly_caused(clean_run, "true")
    run.tables["batches"] = [batch for batch in run.tables["batches"] if batch["batch"] == 0]
    verdict = judge(run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.not_evaluated["torn-batch@rows"] == "no known batch read the input of 6 rows"
