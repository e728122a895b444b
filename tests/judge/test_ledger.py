"""An input that is not the one that was sent proves nothing."""

from __future__ import annotations

from typing import Any

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge


def test_records_without_an_acknowledgement(clean_run: Any) -> None:
    for seq, status, error in [(14, "unknown", None), (13, "failed", "MSG_SIZE_TOO_LARGE: too large")]:
        clean_run.add("sent", {"topic": "in", "seq": seq, "status": status, "error": error})
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reasons == (
        "2 records sent to in were not acknowledged (the first is number 13: failed, MSG_SIZE_TOO_LARGE: too large): "
        "the topic may not hold the intended input",
    )


def test_records_that_are_there_without_an_acknowledgement_are_input(clean_run: Any) -> None:
    """A ledger that does not know of a record says nothing against it: foreign producers are no loss."""
    clean_run.tables["sent"].clear()
    assert judge(clean_run.save()).outcome is Outcome.HELD
