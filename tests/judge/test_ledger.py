"""An input that is not the one that was sent proves nothing."""

from __future__ import annotations

import json
from typing import Any

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge


def test_records_without_an_acknowledgement(clean_run: Any) -> None:
    for seq, status, error in [(14, "unknown", None), (13, "failed", "MSG_SIZE_TOO_LARGE: too large")]:
        clean_run.add("sent", {"topic": "in", "seq": seq, "status": status, "error": error})
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reasons == (
        "2 records of in were not acknowledged (the first is number 13: failed, MSG_SIZE_TOO_LARGE: too large): "
        "what the input holds is not what was meant",
    )


def test_acknowledged_records_that_the_broker_lost(clean_run: Any) -> None:
    # The last two of partition 1, and their effects: to the oracle they never were.
    gone = [row for row in clean_run.tables["input"] if row["partition"] == 1][-2:]
    clean_run.tables["input"] = [row for row in clean_run.tables["input"] if row not in gone]
    where = {(row["partition"], row["offset"]) for row in gone}
    kept = []
    for row in clean_run.tables["output"]:
        effect = json.loads(row["content"])
        if (int(effect["p"]), int(effect["o"])) not in where:
            kept.append(row)
    clean_run.tables["output"] = kept
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reasons == ("the broker lost 2 acknowledged input records (input-lost), the first at in/1@5",)


def test_records_that_are_there_without_an_acknowledgement_are_input(clean_run: Any) -> None:
    """A ledger that does not know of a record says nothing against it: foreign producers are no loss."""
    clean_run.tables["sent"].clear()
    assert judge(clean_run.save()).outcome is Outcome.HELD
