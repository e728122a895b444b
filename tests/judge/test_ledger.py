"""A run whose input may differ from what was sent is inconclusive."""

from __future__ import annotations

from typing import Any

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge


def test_unacknowledged_records_are_inconclusive(clean_run: Any) -> None:
    for seq, status, error in [(14, "unknown", None), (13, "failed", "MSG_SIZE_TOO_LARGE: too large")]:
        clean_run.add("sent", {"topic": "in", "seq": seq, "status": status, "error": error})
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reasons == (
        "2 records sent to in were not acknowledged (the first is number 13: failed, MSG_SIZE_TOO_LARGE: too large): "
        "the topic may not hold the intended input",
    )


def test_records_that_the_ledger_does_not_know_are_input(clean_run: Any) -> None:
    """Records by other producers are not in the ledger, and are not losses."""
    clean_run.tables["sent"].clear()
    assert judge(clean_run.save()).outcome is Outcome.HELD
