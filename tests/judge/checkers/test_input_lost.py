from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge


def lose(run: Any, offsets: set[int]) -> None:
    """Remove records of partition 1 from the log, with their effects: the oracle does not expect them."""
    run.tables["input"] = [
        row for row in run.tables["input"] if not (row["partition"] == 1 and row["offset"] in offsets)
    ]
    run.tables["output"] = [row for row in run.tables["output"] if where(row)[0] != 1 or where(row)[1] not in offsets]


def where(effect: dict[str, Any]) -> tuple[int, int]:
    row = json.loads(effect["content"])
    return int(row["p"]), int(row["o"])


def log(run: Any, start: int, end: int) -> None:
    ends = {"stable_offset": end, "end_offset": end, "collected_ms": 9_000}
    run.add("partitions", {"topic": "in", "partition": 1, "start_offset": start, **ends})


def test_acknowledged_records_that_are_not_in_the_log_are_found(clean_run: Any) -> None:
    lose(clean_run, {5, 6})
    log(clean_run, 0, 8)
    verdict = judge(clean_run.save())
    (finding,) = verdict.findings
    assert (finding.anomaly, finding.output, finding.total) == ("input-lost", "in", 2)
    assert finding.attribution == {"missing in the log (in/1)": 2}
    assert [witness.cause for witness in finding.witnesses] == ["in/1@5", "in/1@6"]
    assert finding.witnesses[0].argument == (
        "Record number 10 was acknowledged as in/1@5.\nBut the log of in/1 holds no record there."
    )
    assert verdict.outcome is Outcome.VIOLATED
    assert verdict.reasons[0] == (
        "input-lost in input in: the broker lost 2 acknowledged input records: missing in the log (in/1)"
    )


def test_retention_and_truncation_are_distinguished(clean_run: Any) -> None:
    lose(clean_run, {0, 1, 6})
    log(clean_run, 2, 6)
    (finding,) = judge(clean_run.save()).findings
    assert finding.attribution == {"beyond the end of the log (in/1)": 1, "removed by retention (in/1)": 2}
    assert finding.witnesses[0].argument.endswith("But the log of in/1 begins at offset 2.")
    assert finding.witnesses[2].argument.endswith("But the log of in/1 ends at offset 6.")


def test_a_loss_is_found_without_the_partitions_ends(clean_run: Any) -> None:
    lose(clean_run, {5})
    (finding,) = judge(clean_run.save()).findings
    assert (finding.total, finding.attribution) == (1, {"missing in the log (in/1)": 1})


def test_markers_and_foreign_records_are_not_losses(clean_run: Any) -> None:
    log(clean_run, 0, 8)
    clean_run.tables["sent"].pop()
    assert judge(clean_run.save()).outcome is Outcome.HELD


def test_an_aborted_record_is_not_lost(clean_run: Any) -> None:
    clean_run.send("k0", {"k": "k0", "n": 50}, visibility="aborted")
    assert judge(clean_run.save()).findings == ()


def test_two_acknowledgements_of_one_offset_are_a_loss(clean_run: Any) -> None:
    """One of the two records is not in the log."""
    clean_run.add("sent", {"topic": "in", "seq": 99, "status": "acked", "partition": 1, "offset": 5})
    (finding,) = judge(clean_run.save()).findings
    assert finding.attribution == {"acknowledged at an offset already taken (in/1)": 1}
    assert finding.witnesses[0].argument == (
        "Record number 99 was acknowledged as in/1@5.\nBut another record was acknowledged there too, and the log of in/1 holds one record there."
    )


@pytest.mark.parametrize("policy", ["compact", "delete, compact"])
def test_holes_in_a_compacted_topic_are_not_evaluated(clean_run: Any, policy: str) -> None:
    """Compaction keeps only the last record of a key; which keys the missing records had is not known."""
    lose(clean_run, {1, 2})
    log(clean_run, 0, 8)
    clean_run.scenario["input"][0]["config"] = {"cleanup.policy": policy}
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE and verdict.findings == ()
    assert " without a record: compaction (cleanup.policy) may have removed records" in verdict.reasons[0]
    assert verdict.not_evaluated["input-lost"].startswith("2 acknowledged records are missing in the log of in")


def test_compaction_explains_only_holes(clean_run: Any) -> None:
    lose(clean_run, {1, 6})
    log(clean_run, 0, 6)
    clean_run.scenario["input"][0]["config"] = {"cleanup.policy": "compact"}
    verdict = judge(clean_run.save())
    (finding,) = verdict.findings
    assert (verdict.outcome, finding.attribution) == (Outcome.VIOLATED, {"beyond the end of the log (in/1)": 1})
