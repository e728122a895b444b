"""A run that was not observed to its end is never examined: what its history lacks may still have happened."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from onceproof.base.errors import HistoryError
from onceproof.judge.findings import Outcome, StatedClaim, Verdict
from onceproof.judge.verdict import check, write_verdict


def broken_off(run: Any, **document: Any) -> Path:
    """A run that would be violated: all effects are missing, as they are before the history is collected."""
    run.document.pop("observed")
    run.document.update(drained=False, seconds=4.5, **document)
    run.tables["output"].clear()
    return Path(run.save())


@pytest.mark.parametrize(
    ("document", "outcome", "why"),
    [
        ({"interrupted": True, "error": "interrupted"}, Outcome.INTERRUPTED, "interrupted"),
        ({"interrupted": True}, Outcome.INTERRUPTED, "interrupted"),
        ({"interrupted": False, "error": "the disk is full"}, Outcome.ERROR, "the disk is full"),
    ],
)
@pytest.mark.parametrize("history", [True, False])
def test_the_verdict_is_the_one_that_the_run_left(
    clean_run: Any, document: dict[str, Any], outcome: Outcome, why: str, history: bool
) -> None:
    folder = broken_off(clean_run, **document)
    if not history:
        shutil.rmtree(folder / "history")
    claim = StatedClaim.from_json(clean_run.scenario["claim"])
    write_verdict(folder, Verdict("small", outcome, claim, (why,), seed=7, seconds=4.5))
    left = (folder / "verdict.json").read_text()
    assert check(folder).outcome is outcome
    assert (folder / "verdict.json").read_text() == left


def test_a_run_whose_harness_was_killed_is_inconclusive(clean_run: Any) -> None:
    folder = broken_off(clean_run)
    events = [{"at": 0.1, "kind": "phase", "name": "run"}, {"at": 0.2, "kind": "phase", "name": "drain"}, {"kind": "x"}]
    lines = [json.dumps(event) for event in events]
    (folder / "events.jsonl").write_text("\n".join(lines) + '\n{"at": 0.3, "kind": "pha')
    verdict = check(folder)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.findings == ()
    assert "not observed to its end: the harness died in phase drain" in verdict.reasons[0]


def test_a_run_whose_harness_was_killed_before_its_first_event(clean_run: Any) -> None:
    verdict = check(broken_off(clean_run))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "in phase unknown" in verdict.reasons[0]


def test_a_run_without_a_scenario_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"scenario": {}}')
    with pytest.raises(HistoryError, match="has no 'name'"):
        check(tmp_path)
