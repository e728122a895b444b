"""The verdict on a run that was not observed to its end. It says how the run ended, and does not judge the history."""

from __future__ import annotations

from pathlib import Path

from onceproof.base.errors import HistoryError
from onceproof.base.timeline import EVENTS, Event
from onceproof.history.run_record import FILE, RunRecord
from onceproof.judge.findings import Outcome, StatedClaim, Verdict


def unobserved(run_dir: Path, run: RunRecord) -> Verdict:
    """The verdict that the run itself left, from ``run.json`` alone. Raises `HistoryError` if that names no scenario."""
    scenario, claim = run.scenario.name, run.scenario.claim
    if scenario is None or claim is None:
        lacks = "'name'" if scenario is None else "'claim'"
        raise HistoryError(f"the scenario in {run_dir / FILE} cannot be used: it has no {lacks}")
    if run.interrupted:
        outcome, why = Outcome.INTERRUPTED, run.error or "interrupted"
    elif run.error:
        outcome, why = Outcome.ERROR, run.error
    else:
        phase = _last_phase(run_dir / EVENTS)
        outcome = Outcome.INCONCLUSIVE
        why = f"the run was not observed to its end: the harness died in phase {phase}, or is still running it"
    return Verdict(
        scenario=scenario,
        outcome=outcome,
        claim=StatedClaim.from_json(claim),
        reasons=(why,),
        seed=run.seed or 0,
        seconds=run.seconds,
    )


def _last_phase(events: Path) -> str:
    """The phase that began last. If the harness was killed, the last line may be cut off, or the file may be missing."""
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
        event = Event.from_line(line)
    except ValueError:
        return None
    return str(event.data["name"]) if event.kind == "phase" and "name" in event.data else None
