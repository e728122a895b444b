from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge

OTHER = {"p": 0, "o": 4, "k": "k0", "n": 99}  # its input is in batch 1; the right value is n = 10


def replay(run: Any) -> None:
    for row in run.tables["batches"]:
        if row["batch"] == 1:
            row["committed_by"] = 1


def of(run: Any, anomaly: str = "diverged-replay") -> list[Any]:
    return [finding for finding in judge(run.save()).findings if finding.anomaly == anomaly]


@pytest.mark.parametrize("output", ["rows", "events"])
def test_a_row_appended_again_with_other_content_is_found(clean_run: Any, output: str) -> None:
    clean_run.insert("rows", OTHER) if output == "rows" else clean_run.record("events", OTHER)
    assert of(clean_run) == []  # the batch ran once
    replay(clean_run)
    verdict = judge(clean_run.save())
    assert [f.anomaly for f in verdict.findings] == ["diverged-replay", "wrong-value"]
    finding = verdict.findings[0]
    assert (finding.output, finding.total, finding.transient) == (output, 1, False)
    assert (finding.attribution, finding.batches) == ({"from the replay of batch 1 (query q)": 1}, {"q/1": 1})
    (witness,) = finding.witnesses
    places = ("rows xid 701", "rows xid 702") if output == "rows" else ("events/0@3", "events/0@6")
    assert (witness.identity, witness.batch, witness.positions) == ({"p": "0", "o": "4"}, 1, places)
    assert witness.argument.splitlines() == [
        "Batch 1 of query q was planned by driver start 0 and committed by start 1.",
        f"It wrote n = 10 at {places[0]}.",
        f"But its replay wrote n = 99 for the same identity, at {places[1]}.",
    ]
    assert verdict.outcome is Outcome.VIOLATED


@pytest.mark.parametrize("output", ["rows", "events"])
def test_a_replay_with_the_same_content_is_a_duplicate(clean_run: Any, output: str) -> None:
    replay(clean_run)
    same = {**OTHER, "n": 10}
    clean_run.insert("rows", same) if output == "rows" else clean_run.record("events", same)
    assert [f.anomaly for f in judge(clean_run.save()).findings] == ["duplicate", "sink-disagreement"]


def test_two_contents_in_one_commit_are_not_a_replay(clean_run: Any) -> None:
    replay(clean_run)
    last = [change for change in clean_run.tables["output"] if change["commit_order"] == 1][-1]
    other = {**json.loads(last["content"]), "n": "99"}
    clean_run.tables["output"].append({**last, "offset": 100, "content": json.dumps(other, separators=(",", ":"))})
    assert [f.anomaly for f in judge(clean_run.save()).findings] == ["wrong-value"]


def test_an_aborted_attempt_is_no_finding(clean_run: Any) -> None:
    replay(clean_run)
    clean_run.record("events", OTHER, visibility="aborted")
    assert judge(clean_run.save()).findings == ()


def test_other_content_that_was_deleted_again_is_transient(stored_run: Any) -> None:
    """A job deletes the output of its first attempt: in the end, everything is correct."""
    run = appended(stored_run)
    wrong, right = {"o": 0, "n": 99}, {"o": 0, "n": 1}
    run.insert("out", wrong)
    run.commit("out", ("delete", wrong, None), ("insert", None, right))
    verdict = judge(run.save())
    (finding,) = verdict.findings
    assert (finding.anomaly, finding.total, finding.transient) == ("diverged-replay", 1, True)
    assert finding.witnesses[0].positions == ("out xid 700", "out xid 701")
    assert finding.allowed is not None
    assert verdict.outcome is Outcome.HELD


def test_content_that_was_deleted_and_written_again(stored_run: Any) -> None:
    run = appended(stored_run)
    right = {"o": 0, "n": 1}
    run.insert("out", right)
    run.commit("out", ("delete", right, None), ("insert", None, right))
    assert judge(run.save()).findings == ()


def appended(run: Any) -> Any:
    run.scenario["outputs"] = {"out": {"table": "out", "identity": ["o"]}}
    run.scenario["oracle"] = {
        "kind": "sql",
        "queries": {"out": 'SELECT _offset AS o, n, _partition, _offset FROM "in"'},
    }
    run.send("a", {"k": "a", "n": 1})
    run.batch(0, {0: (0, 1)}, by=(0, 1))
    run.progress({0: 1})
    return run


def summed(run: Any, where: str) -> Any:
    """Sums by key, upserted: batch 0 (0-500 ms), batch 1 (1,000-1,500 ms), batch 2 (2,000-2,500 ms); batch 1 ran twice."""
    run.scenario["outputs"] = {"out": {where: "out", "identity": ["k"], "kind": "upsert"}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": 'SELECT k, sum(n) AS total FROM "in" GROUP BY k'}}
    run.document["wall_start"] = 0.0
    for number in range(3):
        run.send("a", {"k": "a", "n": 1})
        run.batch(number, {0: (number, number + 1)}, by=(min(number, 1), 1) if number else (0, 0))
    run.tables["batches"][1]["planned_by"] = 0
    run.progress({0: 3})
    return run


def upsert(run: Any, where: str, total: int, before: int | None, at_ms: int) -> None:
    row = {"k": "a", "total": total}
    if where == "topic":
        run.record("out", row)
        run.tables["output"][-1].update(key=b"a", timestamp_ms=at_ms)
    else:
        old = None if before is None else {"k": "a", "total": before}
        run.commit("out", ("insert" if old is None else "update", old, row))
        run.tables["commits"][-1]["commit_time_us"] = at_ms * 1_000


def write(run: Any, where: str, *states: tuple[int, int]) -> Any:
    """Write the output's log: (total, at ms), one after the other."""
    before = None
    for total, at_ms in states:
        upsert(run, where, total, before, at_ms)
        before = total
    return run


@pytest.mark.parametrize("where", ["topic", "table"])
@pytest.mark.parametrize(
    ("states", "transient"),
    [
        (((1, 400), (7, 1_050), (2, 1_400), (3, 2_400)), True),
        (((1, 400), (2, 1_050), (3, 1_400), (4, 2_400)), False),  # increments without a guard
    ],
)
def test_a_row_upserted_again_with_other_content_is_found(
    stored_run: Any, where: str, states: Any, transient: bool
) -> None:
    run = write(summed(stored_run, where), where, *states)
    run.fault(batch=1)  # at 1,100 ms
    (finding,) = of(run)
    assert (finding.total, finding.batches, finding.transient) == (1, {"q/1": 1}, transient)
    assert finding.witnesses[0].positions == (
        ("out/0@1", "out/0@2") if where == "topic" else ("out xid 701", "out xid 702")
    )
    assert (finding.allowed is not None) == transient


@pytest.mark.parametrize("where", ["topic", "table"])
def test_later_batches_may_write_other_content(stored_run: Any, where: str) -> None:
    run = write(summed(stored_run, where), where, (1, 400), (2, 1_050), (2, 1_400), (3, 2_400))
    run.fault(batch=1)
    assert judge(run.save()).findings == ()


@pytest.mark.parametrize("where", ["topic", "table"])
def test_a_first_attempt_that_was_cut_short_is_no_finding(stored_run: Any, where: str) -> None:
    """A job writes one state per record: the replay writes the same states, and further ones."""
    run = write(summed(stored_run, where), where, (1, 400), (8, 1_050), (8, 1_300), (2, 1_400), (3, 2_400))
    run.fault(batch=1)
    assert judge(run.save()).findings == ()


def test_attempts_are_distinguished_by_producer_or_commit(stored_run: Any) -> None:
    run = write(summed(stored_run, "topic"), "topic", (1, 400), (7, 1_050), (2, 1_400), (3, 2_400))
    assert of(run) == []  # no fault, and the producers are unknown: it may be one attempt
    for record, producer in zip(run.tables["output"], (1, 1, 2, 2), strict=True):
        record.update(producer_id=producer, producer_epoch=0)
    assert [f.total for f in of(run)] == [1]
    for record in run.tables["output"]:
        record["producer_id"] = 1
    assert of(run) == []


def test_a_history_without_times_is_not_evaluated(stored_run: Any) -> None:
    run = write(summed(stored_run, "topic"), "topic", (1, 400), (2, 1_400), (3, 2_400))
    del run.document["wall_start"]
    verdict = judge(run.save())
    assert "does not record at which wall-clock time" in verdict.not_evaluated["diverged-replay@out"]
    assert verdict.outcome is Outcome.HELD  # content that survived would be a wrong value


def test_changelog_is_not_evaluated(stored_run: Any) -> None:
    run = summed(stored_run, "topic")
    run.scenario["outputs"]["out"]["kind"] = "changelog"
    query = """SELECT k, sum(n) OVER (PARTITION BY k ORDER BY _offset) AS total, _partition, _offset, _key FROM "in" """
    run.scenario["oracle"]["queries"]["out"] = query
    write(run, "topic", (1, 400), (2, 1_400), (3, 2_400))
    verdict = judge(run.save())
    assert list(verdict.not_evaluated) == ["diverged-replay@out"]
    assert json.loads(run.tables["output"][-1]["content"]) == {"k": "a", "total": 3}
