from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.judge.findings import Finding, Outcome
from onceproof.judge.verdict import judge


def zombies(run: Any) -> list[Finding]:
    return [f for f in judge(run.save()).findings if f.anomaly == "zombie-write"]


@pytest.fixture
def taken_over(clean_run: Any) -> Any:
    """A second driver start plans and commits the second batch."""
    for batch in clean_run.tables["batches"]:
        if batch["batch"] == 1:
            batch.update(planned_by=1, committed_by=1)
    clean_run.document["job"]["starts"] = 2
    return clean_run


COPY = {"p": 0, "o": 0, "k": "k0", "n": 0}


def test_the_successor_alone_is_not_a_zombie(taken_over: Any) -> None:
    verdict = judge(taken_over.save())
    assert (verdict.outcome, verdict.findings, verdict.not_evaluated) == (Outcome.HELD, (), {})


def test_a_copy_in_a_topic_after_the_successor_s_batch_is_found(taken_over: Any) -> None:
    taken_over.record("events", COPY)
    (finding,) = zombies(taken_over)
    assert (finding.output, finding.total, finding.source, finding.transient) == ("events", 1, "duplicate", False)
    assert (finding.attribution, finding.batches) == ({"by driver start 0 after 1 had taken over": 1}, {"q/0": 1})
    assert finding.witnesses[0].positions == ("events/0@3", "events/0@6")
    assert finding.witnesses[0].argument == (
        "Driver start 0 planned batch 0 of query q; start 1 took over, and the first write of its own batches is at events/0@3.\n"
        "A start does not go back to a batch that it has finished, so an older start made the following write.\n"
        "But the record of in/0@0 is at events/0@6. It left copies that stay."
    )


def test_a_copy_in_a_table_after_the_successor_s_batch_is_found(taken_over: Any) -> None:
    taken_over.insert("rows", COPY)
    (finding,) = zombies(taken_over)
    assert (finding.output, finding.total, finding.source) == ("rows", 1, "duplicate")
    assert finding.witnesses[0].positions == ("rows xid 701", "rows xid 702")


def test_a_copy_by_the_same_start_is_not_a_zombie_write(clean_run: Any) -> None:
    clean_run.record("events", COPY)
    clean_run.insert("rows", COPY)
    assert zombies(clean_run) == []
    assert judge(clean_run.save()).anomalies() == {"duplicate": 2}


def test_a_replay_by_the_successor_before_its_own_batches_is_not_a_zombie_write(taken_over: Any) -> None:
    for batch in taken_over.tables["batches"]:
        batch["committed_by"] = 1
    changes = [c for c in taken_over.tables["output"] if c["output"] == "events" and c["partition"] == 0]
    changes[3]["content"], changes[2]["content"] = changes[2]["content"], json.dumps(COPY)
    assert zombies(taken_over) == []


def test_a_copy_of_a_batch_that_a_later_start_committed_is_no_finding(taken_over: Any) -> None:
    for batch in taken_over.tables["batches"]:
        if batch["batch"] == 0:
            batch["committed_by"] = 2
    taken_over.record("events", COPY)
    assert zombies(taken_over) == []


def test_a_copy_visible_after_the_successor_s_batch_was_committed_is_found(taken_over: Any) -> None:
    """In a partition without an effect of the successor, only the time decides."""
    taken_over.document["wall_start"] = 1000.0
    for record in taken_over.tables["output"]:
        if record["output"] == "events":
            record["timestamp_ms"] = 1_000_000
    taken_over.record("events", COPY, partition=7)
    taken_over.tables["output"][-1]["timestamp_ms"] = 1_001_400  # batch 1 was committed at 1.5 s
    assert zombies(taken_over) == []
    taken_over.tables["output"][-1]["timestamp_ms"] = 1_001_600
    (finding,) = zombies(taken_over)
    assert finding.witnesses[0].positions == ("commits/1", "events/7@0")


def test_a_copy_staged_first_and_committed_last_is_found(taken_over: Any) -> None:
    """The zombie's transaction was open: its records are before the successor's, and become visible after them."""
    taken_over.document["wall_start"] = 1000.0
    taken_over.record("events", COPY, partition=7)
    taken_over.record("events", COPY, partition=7)
    for record in taken_over.tables["output"]:
        if record["output"] == "events":
            record.update(timestamp_ms=1_000_000, txn_end_offset=99, txn_end_ms=1_000_000)
    taken_over.tables["output"][-2]["txn_end_ms"] = 1_001_600  # batch 1 was committed at 1.5 s
    assert zombies(taken_over) == [], "batch 0 is of one start: the last record was committed last"
    for batch in taken_over.tables["batches"]:
        batch["committed_by"] = 1
    (finding,) = zombies(taken_over)
    assert (finding.total, finding.source) == (1, "duplicate")
    assert finding.witnesses[0].positions == ("commits/1", "events/7@0")


def test_at_least_once_allows_copies_by_a_zombie(taken_over: Any) -> None:
    taken_over.scenario["claim"] = {"delivery": "at-least-once"}
    taken_over.record("events", COPY)
    verdict = judge(taken_over.save())
    assert "zombie-write" not in verdict.anomalies()
    (finding,) = zombies(taken_over)
    assert "copies of right rows" in (finding.allowed or "")


def test_a_correct_effect_that_only_the_older_start_wrote_is_transient(taken_over: Any) -> None:
    first = next(c for c in taken_over.tables["output"] if c["output"] == "events")
    taken_over.tables["output"].remove(first)
    taken_over.scenario["claim"] = {"order": "none"}
    taken_over.record("events", COPY)
    (finding,) = zombies(taken_over)
    assert (finding.source, finding.transient) == ("late", True)
    assert (finding.allowed or "").startswith("transient: ")


def test_rewritten_rows_have_the_position_of_their_last_write(taken_over: Any) -> None:
    rows = [json.loads(c["content"]) for c in taken_over.tables["output"] if c["output"] == "rows"]
    taken_over.commit("rows", *(("delete", row, None) for row in rows), *(("insert", None, row) for row in rows))
    assert zombies(taken_over) == []


def with_epoch(run: Any, where: str, *writes: tuple[int, int, int]) -> Any:
    """An upsert of one key: writes of (epoch, number, n), each in its own commit or record."""
    run.scenario["outputs"] = {
        "state": {where: "state", "kind": "upsert", "identity": ["k"], "ignore": ["epoch"], "epoch": "epoch"}
    }
    run.scenario["oracle"] = {
        "kind": "sql",
        "queries": {"state": 'SELECT k, max_by(n, _offset) AS n FROM "in" GROUP BY k'},
    }
    for n in (1, 2):
        run.send("a", {"k": "a", "n": n})
    run.progress({0: 2})
    before = None
    for epoch, n in writes:
        row = {"k": "a", "n": n, "epoch": epoch}
        if where == "table":
            run.commit("state", ("insert" if before is None else "update", before, row))
        else:
            run.record("state", row)
            run.tables["output"][-1]["key"] = b"a"
        before = row
    return run


@pytest.mark.parametrize("where", ["table", "topic"])
@pytest.mark.parametrize(
    ("writes", "source", "transient"),
    [
        (((1, 1), (2, 2), (1, 1)), "wrong", False),
        (((1, 1), (2, 2), (1, 1), (2, 2)), "older state", True),
        (((1, 1), (2, 2), (1, 2)), "rewrite", True),
    ],
)
def test_a_write_with_an_older_epoch_is_found(
    stored_run: Any, where: str, writes: Any, source: str, transient: bool
) -> None:
    (finding,) = zombies(with_epoch(stored_run, where, *writes))
    assert (finding.total, finding.source, finding.transient) == (1, source, transient)
    assert (finding.allowed is None) == (not transient)
    assert finding.attribution == {"by epoch 1 after 2 had taken over": 1}
    place = ("state xid 701", "state xid 702") if where == "table" else ("state/0@1", "state/0@2")
    assert finding.witnesses[0].positions == place


def test_an_older_state_contradicts_a_claimed_order(stored_run: Any) -> None:
    run = with_epoch(stored_run, "table", (1, 1), (2, 2), (1, 1), (2, 2))
    run.scenario["claim"] = {"order": "per-key"}
    (finding,) = zombies(run)
    assert finding.transient
    assert finding.allowed is None


@pytest.mark.parametrize("where", ["table", "topic"])
def test_growing_epochs_are_no_finding(stored_run: Any, where: str) -> None:
    verdict = judge(with_epoch(stored_run, where, (1, 1), (1, 1), (2, 2), (3, 2)).save())
    assert (verdict.outcome, verdict.findings, verdict.not_evaluated) == (Outcome.HELD, (), {})


def test_epochs_that_are_not_numbers_are_not_evaluated(stored_run: Any) -> None:
    run = with_epoch(stored_run, "topic", (1, 1), (2, 2))
    run.tables["output"][-1]["content"] = json.dumps({"k": "a", "n": 2, "epoch": "two"})
    assert "without a whole number in the epoch column 'epoch'" in judge(run.save()).not_evaluated["zombie-write@state"]


def test_a_decreasing_producer_epoch_is_found(clean_run: Any) -> None:
    """No broker allows this: a log that shows it cannot be trusted."""
    for record in clean_run.tables["output"]:
        if record["output"] == "events":
            late = json.loads(record["content"])["o"] >= 4
            record.update(producer_id=9, producer_epoch=1 - late if record["partition"] else int(late))
    (finding,) = zombies(clean_run)
    assert (finding.total, finding.source, finding.attribution) == (
        3,
        "late",
        {"by producer epoch 0 after 1 had taken over": 3},
    )
    assert finding.batches == {"q/1": 3}
