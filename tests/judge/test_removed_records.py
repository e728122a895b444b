"""Topics whose records were removed by retention or compaction: the history does not show all, so no claim is decided by them."""

from __future__ import annotations

from typing import Any

import pytest

from onceproof.judge.verdict import judge


def logs(run: Any, *, of_in: int = 0, of_out: int = 0) -> Any:
    """The verdict on a correct run of ten records, of which retention removed the first ones of the input or the output."""
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["id"], "kind": run.document.pop("kind", "append")}}
    query = 'SELECT id, _partition, _offset, _key FROM "in"'
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
    for n in range(10):
        run.send("k", {"id": n})
        run.record("out", {"id": n}, key=str(n))
    run.scenario["outputs"]["out"]["compare_key"] = False
    for table, start in (("input", of_in), ("sent", of_in), ("output", of_out)):
        run.tables[table] = [row for row in run.tables[table] if row["offset"] >= start]
    for topic, start in (("in", of_in), ("out", of_out)):
        ends = {"start_offset": start, "stable_offset": 10, "end_offset": 10, "collected_ms": 1}
        run.add("partitions", {"topic": topic, "partition": 0, **ends})
    run.progress({0: 10})
    return judge(run.save())


@pytest.mark.parametrize("where", ["in", "out"])
def test_records_that_retention_removed_are_no_violation(stored_run: Any, where: str) -> None:
    verdict = logs(stored_run, **{f"of_{where}": 5})
    assert verdict.outcome == "inconclusive"
    assert verdict.reasons[0].startswith(f"the log of {where}/0 begins at offset 5: retention removed")
    assert any("Records that retention removed may explain it" in reason for reason in verdict.reasons)


def test_records_that_were_read_before_they_were_deleted_decide(stored_run: Any) -> None:
    """The fault `retention` reads them first, so the history has all of the input."""
    assert logs(stored_run).outcome == "held"
    stored_run.tables["partitions"][0]["start_offset"] = 5
    assert judge(stored_run.save()).outcome == "held"
    stored_run.tables["output"] = [row for row in stored_run.tables["output"] if row["offset"] != 3]
    verdict = judge(stored_run.save())
    assert verdict.outcome == "violated" and set(verdict.anomalies()) == {"lost-write"}


def test_an_upsert_topic_may_begin_later(stored_run: Any) -> None:
    stored_run.document["kind"] = "upsert"
    for _ in range(2):  # an older state of a key, which compaction removed
        stored_run.skip("out", 0)
    verdict = logs(stored_run, of_out=2)
    assert verdict.outcome == "held", verdict.reasons


def test_what_removed_records_do_not_explain_is_a_violation(stored_run: Any) -> None:
    verdict = logs(stored_run)
    assert verdict.outcome == "held", verdict.reasons
    stored_run.record("out", {"id": 9})
    stored_run.record("out", {"id": 99})
    stored_run.tables["output"] = [row for row in stored_run.tables["output"] if row["offset"] >= 5]
    stored_run.tables["partitions"][1]["start_offset"] = 5
    assert judge(stored_run.save()).outcome == "violated"


def compacted(run: Any, *holes: int) -> Any:
    """Make a correct run whose compacted input, which another producer sent, holds no record at these offsets."""
    verdict = logs(run)
    assert verdict.outcome == "held", verdict.reasons
    run.scenario["input"][0]["config"] = {"cleanup.policy": "compact"}
    assert judge(run.save()).outcome == "held"
    run.tables["input"] = [row for row in run.tables["input"] if row["offset"] not in holes]
    run.tables["sent"].clear()
    return run


def test_records_that_compaction_removed_are_no_violation(stored_run: Any) -> None:
    """The job had read the records before: its rows are unexplained."""
    verdict = judge(compacted(stored_run, 3, 4).save())
    assert verdict.outcome == "inconclusive"
    assert verdict.reasons[0].startswith("the log of in/0 has 2 offsets without a record: compaction")
    assert any("Records that compaction removed may explain it" in reason for reason in verdict.reasons)


def test_markers_in_a_compacted_log_are_no_removed_records(stored_run: Any) -> None:
    run = compacted(stored_run, 3, 9)
    for row in run.tables["input"]:
        row.update(producer_id=1, producer_epoch=0, txn_end_offset=3 if row["offset"] < 3 else 9, txn_end_ms=1_100)
    assert not any("compaction" in reason for reason in judge(run.save()).reasons)
