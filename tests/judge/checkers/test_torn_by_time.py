"""Torn batches of outputs whose commits belong to batches by time only."""

from __future__ import annotations

from typing import Any

import pytest

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import Verdict, judge

#: When the three batches run, in seconds after the run began; each reads two records.
SPANS = ((0.0, 10.0), (10.1, 12.0), (12.4, 20.0))


def three_batches(run: Any, output: dict[str, Any]) -> None:
    run.document["wall_start"] = 1000.0
    run.scenario["outputs"] = {"counts": {**output, "identity": ["k"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"counts": 'SELECT k, max(n) AS n FROM "in" GROUP BY k'}}
    run.scenario["claim"] = {"atomic": "batch"}
    for number, (planned, committed) in enumerate(SPANS):
        for n in (2 * number, 2 * number + 1):
            run.send(f"k{n}", {"k": f"k{n}", "n": n})
        run.batch(number, {0: (2 * number, 2 * number + 2)})
        run.tables["batches"][-1].update(planned_at=planned, committed_at=committed)
    run.progress({0: 6})


def in_table(run: Any, *commits: tuple[float, str], kind: str = "upsert") -> Verdict:
    """Judge a table with these commits: the time in seconds, and the numbers of its rows."""
    three_batches(run, {"table": "counts", "kind": kind})
    for at, numbers in commits:
        run.insert("counts", *({"k": f"k{n}", "n": n} for n in numbers))
        run.tables["commits"][-1]["commit_time_us"] = int((1000 + at) * 1_000_000)
    return judge(run.save())


def in_topic(run: Any, *transactions: tuple[float, float, str]) -> Verdict:
    """Judge a topic with these transactions: when their records were created, when their marker came, and their numbers."""
    three_batches(run, {"topic": "counts", "kind": "upsert"})
    for epoch, (created, ended, numbers) in enumerate(transactions):
        for n in numbers:
            run.record("counts", {"k": f"k{n}", "n": int(n)}, key=f"k{n}")
        end = run.skip("counts", 0)
        for record in run.tables["output"][-len(numbers) :]:
            record.update(producer_id=7, producer_epoch=epoch, timestamp_ms=int((1000 + created) * 1000))
            record.update(txn_end_offset=end, txn_end_ms=int((1000 + ended) * 1000))
    return judge(run.save())


def assert_not_evaluated(verdict: Verdict, reason: str) -> None:
    assert (verdict.outcome, verdict.findings) == (Outcome.INCONCLUSIVE, ())
    assert verdict.not_evaluated["torn-batch@counts"] == reason


BETWEEN = "{} changed it while no batch of query q was running, or more than one, the first at {}: it is not known which batch wrote what"


@pytest.mark.parametrize("kind", ["upsert", "append"])
def test_the_rest_of_a_batch_that_comes_before_the_next_batch(stored_run: Any, kind: str) -> None:
    verdict = in_table(stored_run, (9, "01"), (11, "2"), (12.2, "3"), (19, "45"), kind=kind)
    assert_not_evaluated(verdict, BETWEEN.format("1 commit", "counts xid 702"))


def test_a_commit_between_batches_that_changes_nothing_is_no_part_of_a_batch(stored_run: Any) -> None:
    three_batches(stored_run, {"table": "counts", "kind": "upsert"})
    row = {"k": "k2", "n": 2}
    for at, changes in (
        (9, [("insert", None, {"k": f"k{n}", "n": n}) for n in (0, 1)]),
        (11, [("insert", None, {"k": f"k{n}", "n": n}) for n in (2, 3)]),
        (12.2, [("update", row, row)]),
        (19, [("insert", None, {"k": f"k{n}", "n": n}) for n in (4, 5)]),
    ):
        stored_run.commit("counts", *changes)
        stored_run.tables["commits"][-1]["commit_time_us"] = int((1000 + at) * 1_000_000)
    verdict = judge(stored_run.save())
    assert (verdict.outcome, verdict.findings) == (Outcome.HELD, ()), verdict.reasons


def test_late_halves_of_all_batches_name_no_batch(stored_run: Any) -> None:
    """Batch 1 alone has two commits in its time, and the first of them is the rest of batch 0."""
    verdict = in_table(stored_run, (9, "0"), (10.2, "1"), (11, "2"), (12.2, "3"), (19, "4"), (21, "5"))
    assert_not_evaluated(verdict, BETWEEN.format("2 commits", "counts xid 703"))


@pytest.mark.parametrize("torn", [False, True])
def test_a_clock_that_is_an_hour_ahead(stored_run: Any, torn: bool) -> None:
    second = [(3611.0, "2"), (3611.5, "3")] if torn else [(3611.0, "23")]
    verdict = in_table(stored_run, (3609, "01"), *second, (3619, "45"))
    assert_not_evaluated(verdict, BETWEEN.format(f"{3 + torn} commits", "counts xid 700"))


def test_a_clock_that_is_three_seconds_behind(stored_run: Any) -> None:
    verdict = in_table(stored_run, (6.5, "01"), (8.5, "23"), (16.5, "45"))
    reason = (
        "1 commit came during a batch that already had one, and 1 batch with input had none. "
        "Clocks may differ: it is not known which batch wrote what"
    )
    assert_not_evaluated(verdict, reason)


def test_more_commits_than_batches_are_torn_in_spite_of_a_batch_without_a_commit(stored_run: Any) -> None:
    three_batches(stored_run, {"table": "counts", "kind": "upsert"})
    stored_run.scenario["oracle"]["queries"]["counts"] = (
        'SELECT k, max(n) AS n FROM "in" WHERE n NOT IN (2, 3) GROUP BY k'
    )
    for at, n in ((8, 0), (9, 1), (18, 4), (19, 5)):
        stored_run.insert("counts", {"k": f"k{n}", "n": n})
        stored_run.tables["commits"][-1]["commit_time_us"] = int((1000 + at) * 1_000_000)
    verdict = judge(stored_run.save())
    (finding,) = verdict.findings
    assert (finding.anomaly, finding.total, finding.batches) == ("torn-batch", 2, {"q/0": 1, "q/2": 1})


def test_a_batch_that_was_never_committed_has_no_end(stored_run: Any) -> None:
    three_batches(stored_run, {"table": "counts", "kind": "upsert"})
    stored_run.tables["batches"][-1].update(committed_at=None, committed_by=None)
    stored_run.document["drained"] = False
    stored_run.scenario["claim"]["liveness"] = "none"
    for at, numbers in ((9, (0, 1)), (11, (2, 3)), (30, (4,)), (31, (5,))):
        stored_run.insert("counts", *({"k": f"k{n}", "n": n} for n in numbers))
        stored_run.tables["commits"][-1]["commit_time_us"] = int((1000 + at) * 1_000_000)
    (finding,) = judge(stored_run.save()).findings
    assert (finding.total, finding.batches, finding.witnesses[0].positions) == (
        1,
        {"q/2": 1},
        ("counts xid 702", "counts xid 703"),
    )


def test_a_marker_that_comes_during_the_next_batch(stored_run: Any) -> None:
    """The coordinator writes markers after the commit was answered; the records were created in the batch."""
    verdict = in_topic(stored_run, (9.8, 10.3, "01"), (11.8, 11.9, "23"), (19.8, 19.9, "45"))
    assert (verdict.outcome, verdict.findings) == (Outcome.HELD, ()), verdict.reasons


def test_records_that_were_created_long_before_their_marker_belong_to_its_batch(stored_run: Any) -> None:
    """The job sets the times of its records."""
    verdict = in_topic(stored_run, (1, 9, "01"), (2, 11.9, "2"), (2, 11.95, "3"), (4, 19, "45"))
    (finding,) = verdict.findings
    assert (finding.total, finding.batches) == (1, {"q/1": 1})
    assert finding.witnesses[0].positions == ("counts/0@3", "counts/0@5")


def states(run: Any, *commits: tuple[float, tuple[str, ...]]) -> Any:
    """An upsert of counts per key: commits at a time in seconds, with these keys. Batch N runs from N to N + 0.5."""
    run.document["wall_start"] = 1000.0
    run.scenario["outputs"] = {"counts": {"table": "counts", "kind": "upsert", "identity": ["k"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"counts": 'SELECT k, count(*) AS n FROM "in" GROUP BY k'}}
    run.scenario["claim"] = {"atomic": "batch"}
    for number in range(2):
        for key in ("a", "b"):
            run.send(key, {"k": key})
        run.batch(number, {0: (2 * number, 2 * number + 2)}, by=(0, number))  # the second is replayed
    run.progress({0: 4})
    counts: dict[str, int] = {}
    for at, keys in commits:
        changes: list[Any] = []
        for key in keys:
            before = {"k": key, "n": counts[key]} if key in counts else None
            counts[key] = 1 if at < 1 else 2
            changes.append(("insert" if before is None else "update", before, {"k": key, "n": counts[key]}))
        run.commit("counts", *changes)
        run.tables["commits"][-1]["commit_time_us"] = int((1000 + at) * 1_000_000)
    return run


def test_upserted_batches_in_one_commit_each_are_not_torn(stored_run: Any) -> None:
    run = states(stored_run, (0.2, ("a", "b")), (1.1, ("a", "b")), (1.4, ("b", "a")))  # the last one is a replay
    verdict = judge(run.save())
    assert (verdict.outcome, verdict.findings) == (Outcome.HELD, ())


@pytest.mark.parametrize(
    "commits",
    [
        ((0.2, ("a",)), (0.3, ("b",)), (1.1, ("a", "b"))),
        ((0.2, ("a",)), (0.3, ("a", "b")), (1.1, ("a", "b"))),  # a replay that completes a partly written batch
    ],
)
def test_an_upserted_batch_in_two_commits_is_torn(stored_run: Any, commits: Any) -> None:
    (finding,) = judge(states(stored_run, *commits).save()).findings
    assert (finding.output, finding.total, finding.batches) == ("counts", 1, {"q/0": 1})
    assert finding.witnesses[0].identity == {"k": "b"}
    assert finding.witnesses[0].positions == ("counts xid 700", "counts xid 701")


def test_an_upsert_with_unknown_commit_times_is_not_evaluated(stored_run: Any) -> None:
    run = states(stored_run, (0.2, ("a", "b")), (1.1, ("a", "b")))
    run.document.pop("wall_start")
    verdict = judge(run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "at what time its batches ran" in verdict.not_evaluated["torn-batch@counts"]
    for commit in run.tables["commits"]:
        commit["commit_time_us"] = None
    assert "at what time its writes became visible" in judge(run.save()).not_evaluated["torn-batch@counts"]
