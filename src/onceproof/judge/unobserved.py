"""The verdict on a run that was not observed to its end: how it ended is all that can be said, and nothing of its history."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onceproof.base.errors import HistoryError
from onceproof.judge.findings import Outcome, Verdict


def unobserved(run_dir: Path, document: Mapping[str, Any]) -> Verdict:
    """From ``run.json`` alone, the same verdict that the run itself left. Raises `HistoryError` where it names no scenario."""
    try:
        scenario, claim = document["scenario"]["name"], document["scenario"]["claim"]
    except (KeyError, TypeError) as error:
        raise HistoryError(f"the scenario in {run_dir / 'run.json'} cannot be used: it has no {error}") from error
    if document.get("interrupted"):
        outcome, why = Outcome.INTERRUPTED, document.get("error") or "interrupted"
    elif document.get("error"):
        outcome, why = Outcome.ERROR, document["error"]
    else:
        phase = _last_phase(run_dir / "events.jsonl")
        outcome = Outcome.INCONCLUSIVE
        why = f"the run was not observed to its end: the harness died in phase {phase}, or is still in it"
    return Verdict(
        scenario=scenario,
        outcome=outcome,
        claim=claim,
        reasons=(why,),
        seed=int(document.get("seed", 0)),
        seconds=float(document.get("seconds", 0.0)),
    )


def _last_phase(events: Path) -> str:
    """The phase that began last. The last line may be cut off, and there may be no file: who wrote it was killed."""
    phase = "unknown"
    try:
        with events.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                phase = _phase_of(line) or phase
    except OSError:
        pass
    return phase


def _phase_of(line: str) -> str | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return str(event["name"]) if isinstance(event, dict) and event.get("kind") == "phase" and "name" in event else None
