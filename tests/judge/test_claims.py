"""A claim that nobody judges is never held."""

from __future__ import annotations

from typing import Any

import pytest

from onceproof.judge.checker import checkers
from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge


class Silent:
    meaning = "nothing is ever torn"

    def check(self, _case: Any) -> list[Any]:
        return []


@pytest.mark.parametrize("atomic", ["batch", "transaction"])
def test_claim_without_a_checker(clean_run: Any, monkeypatch: pytest.MonkeyPatch, atomic: str) -> None:
    checkers.names()  # the real ones are loaded before they are hidden
    known = {name: checkers.get(name) for name in checkers.names() if name != "torn-batch"}
    monkeypatch.setattr(checkers, "_items", known)
    clean_run.scenario["claim"] = {"order": "per-key", "atomic": atomic}
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    # One reason, although two outputs make the claim.
    assert verdict.reasons == (f"claim atomic: {atomic} is not judged yet: no checker for torn-batch is registered",)
    monkeypatch.setattr(checkers, "_items", {**known, "torn-batch": Silent})
    assert judge(clean_run.save()).outcome is Outcome.HELD


def test_own_claim_of_one_output_without_a_checker(clean_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: checkers.get(name) for name in checkers.names() if name != "stale-tail"}
    monkeypatch.setattr(checkers, "_items", known)
    clean_run.scenario["claim"] = {"order": "none", "liveness": "none"}
    assert judge(clean_run.save()).outcome is Outcome.HELD
    clean_run.scenario["outputs"]["rows"]["claim"] = {"order": "none", "liveness": "recovers"}
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "claim liveness: recovers is not judged yet" in verdict.reasons[0]
