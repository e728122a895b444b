"""A verdict gives a reason for a loss or a duplicate only if it is known, and otherwise calls it unknown."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceproof.judge.findings import Finding, Outcome, Verdict
from onceproof.judge.verdict import check, judge

COUNTS = 'SELECT hour, count(*) AS n FROM "in" GROUP BY hour'
CLOSING = """SELECT hour, count(*) AS n, to_timestamp(3600 * (hour + 1)) AS _closes FROM "in" GROUP BY hour"""


def of(verdict: Verdict, anomaly: str) -> Finding:
    (finding,) = [f for f in verdict.findings if f.anomaly == anomaly]
    return finding


def counted(run: Any, hours: list[list[int]], *, query: str = COUNTS, missing: tuple[int, ...] = ()) -> Any:
    """One batch per list of hours, one record per hour in it. The topic gets each hour's count, except the missing ones."""
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["hour"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
    run.scenario["claim"] = {"delivery": "at-most-once"}
    for number, batch in enumerate(hours):
        offsets = [run.send(None, {"hour": hour}) for hour in batch]
        run.batch(number, {0: (offsets[0], offsets[-1] + 1)})
    every = [hour for batch in hours for hour in batch]
    for hour in sorted(set(every) - set(missing)):
        run.record("out", {"hour": hour, "n": every.count(hour)})
    run.progress({0: len(every)})
    return run


def test_a_window_with_all_input_in_one_struck_batch_was_lost_there(stored_run: Any) -> None:
    run = counted(stored_run, [[1, 1, 2], [3, 3, 4], [5]], missing=(3, 4))
    run.fault(batch=1)
    verdict = judge(run.save())
    finding = of(verdict, "lost-write")
    assert (finding.total, finding.source, finding.batches) == (2, "fault", {"q/1": 2})
    assert "struck by crash driver in batch 1" in finding.summary
    assert finding.witnesses[0].argument == (
        "Its input is committed, and all of it is in batch 1 of query q.\n"
        "The run drained: it reached the end of the input.\n"
        "But of 1 record expected, 0 can be read; a fault struck its batch: crash driver in batch 1 at after-sink-commit."
    )
    assert finding.allowed == "at-most-once allows a loss in a batch that a fault struck"
    assert verdict.outcome is Outcome.HELD


def test_a_window_with_input_in_two_batches_was_lost_in_an_unknown_batch(stored_run: Any) -> None:
    run = counted(stored_run, [[1, 3], [3, 3, 4], [5]], missing=(3,))
    run.fault(batch=1)
    verdict = judge(run.save())
    finding = of(verdict, "lost-write")
    assert (finding.source, finding.batches, finding.attribution) == ("unknown", {}, {"from an unknown batch": 1})
    assert "no fault" not in finding.summary + finding.witnesses[0].argument
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "the batch that lost them is not known" in verdict.reasons[0]
    assert verdict.anomalies() == {}
    run.scenario["claim"] = {"delivery": "effectively-once"}
    assert judge(run.save()).outcome is Outcome.VIOLATED, "a loss is a loss"


def test_without_faults_the_reason_of_a_loss_is_no_fault(stored_run: Any) -> None:
    verdict = judge(counted(stored_run, [[1, 3], [3, 4], [5]], missing=(3,)).save())
    assert of(verdict, "lost-write").source == "no fault"
    assert of(verdict, "lost-write").summary == "1 record missing; no fault was injected"
    assert verdict.outcome is Outcome.VIOLATED


def test_a_window_is_written_by_the_batch_that_closes_it(stored_run: Any) -> None:
    run = counted(stored_run, [[0, 1], [1, 2], [3, 4]], query=CLOSING, missing=(1,))
    run.fault(batch=1)
    for row in run.tables["batches"]:
        row["watermark_ms"] = 3_600_000 * (0, 2, 9)[row["batch"]]
    finding = of(judge(run.save()), "lost-write")
    assert (finding.source, finding.batches) == ("fault", {"q/1": 1})
    assert "its window closes in batch 1 of query q" in finding.witnesses[0].argument


def lose(run: Any, *offsets: int) -> None:
    """Drop the records of these offsets of partition 0 from ``events``."""
    run.tables["output"] = [
        row
        for row in run.tables["output"]
        if not (row["output"] == "events" and (f := json.loads(row["content"]))["p"] == 0 and f["o"] in offsets)
    ]


def test_a_fault_that_was_only_still_active_does_not_excuse_a_loss(clean_run: Any) -> None:
    clean_run.scenario["claim"] = {"delivery": "at-most-once"}
    clean_run.fault(batch=0)
    clean_run.tables["faults"][0]["healed_at"] = 1.2  # batch 1 had begun by then
    lose(clean_run, 4)
    verdict = judge(clean_run.save())
    finding = of(verdict, "lost-write")
    assert (finding.source, finding.allowed) == ("unknown", None)
    assert finding.witnesses[0].argument.endswith(
        "But of 1 record expected, 0 can be read; the cause is unknown; "
        "active at that time: crash driver in batch 0 at after-sink-commit."
    )
    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_a_fault_that_was_only_still_active_does_not_explain_a_duplicate(clean_run: Any) -> None:
    clean_run.scenario["claim"] = {"delivery": "at-least-once"}
    clean_run.fault(batch=0)
    clean_run.tables["faults"][0]["healed_at"] = 1.2
    clean_run.record("events", {"p": 0, "o": 4, "k": "k0", "n": 10})
    verdict = judge(clean_run.save())
    assert of(verdict, "duplicate").source == "unknown"
    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_a_copy_whose_batch_is_not_known_has_an_unknown_reason_once_a_fault_struck(stored_run: Any) -> None:
    run = counted(stored_run, [[1, 1, 2], [3, 3, 4], [5]])
    run.scenario["claim"] = {"delivery": "at-least-once"}
    run.record("out", {"hour": 3, "n": 2})
    verdict = judge(run.save())
    assert "Nothing in the history explains the copy.\n" in of(verdict, "duplicate").witnesses[0].argument
    assert verdict.outcome is Outcome.VIOLATED
    run.fault(batch=1)
    verdict = judge(run.save())
    argument = of(verdict, "duplicate").witnesses[0].argument
    assert "Why it was written again is not known: the batch that wrote the copy is not known.\n" in argument
    assert verdict.outcome is Outcome.INCONCLUSIVE


def written_twice(run: Any, table: bool) -> Any:
    """Batches of 5 s, 10 s apart; the second is replayed by another start. The output counts records, and has batch 1's twice."""
    output = {"table": "rows"} if table else {"topic": "rows"}
    run.scenario["outputs"] = {"rows": {**output, "identity": ["hour"]}}
    query = COUNTS.replace("hour,", "hour::VARCHAR AS hour,") if table else COUNTS
    run.scenario["oracle"] = {"kind": "sql", "queries": {"rows": query}}
    run.scenario["claim"] = {"delivery": "at-least-once"}
    run.document["wall_start"] = 1_000.0
    for number in range(4):
        offset = run.send(None, {"hour": number})
        run.batch(number, {0: (offset, offset + 1)}, by=((0, 0), (0, 1), (1, 1), (1, 1))[number])
    for batch in run.tables["batches"]:
        batch |= {"planned_at": 10.0 * batch["batch"], "committed_at": 10.0 * batch["batch"] + 5}
    for number in (0, 1, 2, 3, 1):
        (run.insert if table else run.record)("rows", {"hour": number, "n": 1})
    run.progress({0: 4})
    run.fault(batch=1)
    return run


@pytest.mark.parametrize(
    ("second", "source"),
    [
        (14, "batch replay"),  # while batch 1 was open
        (24, "unknown"),  # while batch 2 was open, whose rows are not known
        (27, "zombie"),  # between batches 2 and 3 of the second start
        (29.5, "unknown"),  # batch 3 may have been planned by then
        (37, "zombie"),
    ],
)
def test_a_copy_of_an_unknown_batch_comes_from_a_zombie_if_no_batch_was_open(
    stored_run: Any, second: float, source: str
) -> None:
    run = written_twice(stored_run, table=True)
    for commit, at in zip(run.tables["commits"], (3, 13, 23, 33, second), strict=True):
        commit["commit_time_us"] = round((1_000 + at) * 1e6)
    finding = of(judge(run.save()), "duplicate")
    assert finding.source == source
    if source == "zombie":
        assert finding.witnesses[0].argument.splitlines()[1] == (
            "Batch 1 of query q was planned by driver start 0; start 1 planned and committed batch 2, and one of the copies "
            "came after that, while no batch was open."
        )
    else:
        assert "no batch was open" not in finding.witnesses[0].argument


@pytest.mark.parametrize(
    "doubt",
    [
        lambda run: run.tables["batches"][2].update(planned_at=None, committed_at=None),
        lambda run: run.tables["faults"][0].update(fault="late-request"),
        lambda run: run.add(
            "batches", {**run.tables["batches"][3], "query": "other", "planned_at": 26.0, "committed_at": 28.0}
        ),
    ],
)
def test_a_copy_is_not_attributed_to_a_zombie_if_a_batch_may_have_been_open(
    stored_run: Any, doubt: Callable[[Any], None]
) -> None:
    run = written_twice(stored_run, table=True)
    for commit, at in zip(run.tables["commits"], (3, 13, 23, 33, 27), strict=True):
        commit["commit_time_us"] = round((1_000 + at) * 1e6)
    doubt(run)
    assert of(judge(run.save()), "duplicate").source == "unknown"


@pytest.mark.parametrize(
    ("created", "marker", "source"), [(24.8, 25.3, "unknown"), (26.0, 26.5, "zombie"), (24.8, 27, "zombie")]
)
def test_a_transactions_marker_may_be_written_after_its_batch(
    stored_run: Any, created: float, marker: float, source: str
) -> None:
    """Kafka answers EndTxn first, and writes the markers then."""
    run = written_twice(stored_run, table=False)
    for record, at in zip(run.tables["output"], (3, 13, 23, 33, marker), strict=True):
        record |= {"timestamp_ms": round((1_000 + at) * 1e3) - 500, "txn_end_ms": round((1_000 + at) * 1e3)}
    run.tables["output"][-1]["timestamp_ms"] = round((1_000 + created) * 1e3)
    assert of(judge(run.save()), "duplicate").source == source


def imported(run: Any, *, drained: bool = True) -> Any:
    run.document |= {"imported": True, "drained": drained, "job": None}
    run.document["drain_note"] = None if drained else "imported as not drained"
    for table in ("batches", "progress", "commits"):
        run.tables[table].clear()
    run.scenario["outputs"].pop("rows")
    run.scenario["oracle"]["queries"].pop("rows")
    run.tables["output"] = [row for row in run.tables["output"] if row["output"] == "events"]
    return run


def test_missing_effects_of_an_undrained_import_may_still_come(clean_run: Any) -> None:
    lose(imported(clean_run, drained=False), 1, 4)
    verdict = judge(clean_run.save())
    assert verdict.findings == ()
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.not_evaluated["stale-tail@events"] == (
        "the history was imported as not drained: 2 records are missing and may still come"
    )


def test_a_loss_in_an_import_does_not_mention_progress_or_faults(clean_run: Any) -> None:
    lose(imported(clean_run), 1)
    verdict = judge(clean_run.save())
    finding = of(verdict, "lost-write")
    assert (verdict.outcome, finding.source) == (Outcome.VIOLATED, "unknown")
    text = " ".join([finding.summary, finding.witnesses[0].argument, *verdict.reasons])
    assert "recorded progress" not in text and "no fault " not in text
    assert "it records no progress" in finding.witnesses[0].argument
    clean_run.scenario["claim"] = {"delivery": "at-most-once"}
    assert judge(clean_run.save()).outcome is Outcome.INCONCLUSIVE


def test_whether_at_least_once_allows_a_duplicate_in_an_import_is_undecided(clean_run: Any) -> None:
    imported(clean_run).record("events", {"p": 0, "o": 4, "k": "k0", "n": 10})
    clean_run.scenario["claim"] = {"delivery": "at-least-once"}
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "records neither batches nor faults" in verdict.reasons[0]


@pytest.mark.parametrize(("topic", "table", "found"), [(1, 0, [("events", 1)]), (1, 1, []), (2, 1, [("events", 1)])])
def test_outputs_may_disagree_in_the_number_of_copies(clean_run: Any, topic: int, table: int, found: Any) -> None:
    copy = {"p": 0, "o": 4, "k": "k0", "n": 10}
    for _ in range(topic):
        clean_run.record("events", copy)
    for _ in range(table):
        clean_run.insert("rows", copy)
    findings = [f for f in judge(clean_run.save()).findings if f.anomaly == "sink-disagreement"]
    assert [(f.output, f.total) for f in findings] == found
    if (topic, table) == (1, 0):
        assert findings[0].summary == "1 record with more copies in this output than in another"
        assert findings[0].witnesses[0].argument == (
            "Input in/0@4 should be in 'events' and in 'rows'.\n"
            "'rows' holds as many as expected, at rows xid 701.\n"
            "But 'events' holds 1 more than expected: the topic holds 2 records, at events/0@3 and events/0@6."
        )


@pytest.mark.parametrize("output", ["rows", "events"])
def test_a_missing_identity_column_is_reported_once(clean_run: Any, output: str) -> None:
    clean_run.scenario["oracle"]["queries"][output] = clean_run.scenario["oracle"]["queries"][output].replace(
        "_offset AS o", "_offset AS seq"
    )
    clean_run.scenario["outputs"][output]["identity"] = ["p", "seq"]
    verdict = judge(clean_run.save())
    assert [f for f in verdict.findings if f.output == output] == []
    kind = "row" if output == "rows" else "record"
    (text,) = [reason for reason in verdict.reasons if "seq" in reason]
    assert text == (
        f"output {output} cannot be judged: no {kind} has a column 'seq', which is part of the identity; "
        "the columns are k, n, o, p"
    )


def test_a_row_is_not_misplaced_for_one_small_value_in_common(stored_run: Any) -> None:
    run = stored_run
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["id"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": 'SELECT id, n, _partition, _offset FROM "in"'}}
    for number in range(4):
        run.send(None, {"id": f"a{number}", "n": number})
        run.record("out", {"id": f"a{number}" if number else "foreign", "n": number})
    run.progress({0: 4})
    assert judge(run.save()).anomalies() == {"lost-write": 1, "unexplained": 1}


def test_all_witnesses_are_in_a_file(clean_run: Any) -> None:
    run = clean_run
    run.tables["output"] = [row for row in run.tables["output"] if row["output"] == "rows"]
    for number in range(40):
        offset = run.send("k9", {"k": "k9", "n": 500 + number})
        run.insert("rows", {"p": 0, "o": offset, "k": "k9", "n": 500 + number})
    run.tables["progress"].clear()
    run.progress({0: 48, 1: 8})
    finding = of(check(run.save()), "lost-write")
    assert (finding.total, len(finding.witnesses)) == (52, 32)
    file = run.path / str(finding.witness_file)
    assert file == run.path / "witnesses" / "lost-write-events-no-fault.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len({line["cause"] for line in lines}) == 52
    assert lines[0]["argument"] == finding.witnesses[0].argument
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    stored = json.loads((run.path / "verdict.json").read_text())
    assert {f["witness_file"] for f in stored["findings"] if f["anomaly"] == "lost-write"} == {
        str(finding.witness_file)
    }


def test_many_witnesses_are_all_written(clean_run: Any) -> None:
    for number in range(2_500):
        clean_run.record("events", {"p": 7, "o": number, "k": "x", "n": 1})
    finding = of(check(clean_run.save()), "unexplained")
    lines = (clean_run.path / str(finding.witness_file)).read_text().splitlines()
    assert len({json.loads(line)["identity"]["o"] for line in lines}) == finding.total == 2_500


def test_a_link_in_place_of_the_witness_folder_is_not_followed(clean_run: Any, tmp_path: Path) -> None:
    victim = tmp_path / "elsewhere"
    victim.mkdir()
    (victim / "lost-write-events-no-fault.jsonl").write_text("mine")
    lose(clean_run, 1)
    path = clean_run.save()
    (path / "witnesses").symlink_to(victim)
    assert of(check(path), "lost-write").witness_file is not None
    assert (victim / "lost-write-events-no-fault.jsonl").read_text() == "mine"
    assert not (path / "witnesses").is_symlink()


def test_the_slice_of_a_lost_window_keeps_its_batch(stored_run: Any) -> None:
    run = counted(stored_run, [[1, 1, 2], [3, 3, 4], [5]], missing=(3,))
    run.scenario["claim"] = {"delivery": "effectively-once"}
    run.fault(batch=1)
    verdict = check(run.save())
    (folder,) = verdict.slices.values()
    found = of(judge(run.path / folder), "lost-write")
    assert (found.source, found.batches) == ("fault", {"q/1": 1})
    assert found.witnesses == of(verdict, "lost-write").witnesses
