"""A schedule as an ordinary run, with real kills: the faults that a scenario would name, and the run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onceproof.base.errors import EnvironmentProblem, OnceproofError, WaitTimeout
from onceproof.base.words import times
from onceproof.explore.exploration import Verdicts
from onceproof.judge.findings import Outcome, Verdict
from onceproof.run import run
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.scenario_files.load import LoadedScenario
from onceproof.warm.attempts import Strike

#: An ordinary run gets one more chunk of input than faults need: it may put the first chunk into batch 0.
_SPARE_CHUNKS = 1


def fault_specs(scenario: Scenario, strikes: Sequence[Strike], instruments: Collection[str]) -> list[FaultSpec]:
    """The faults with which an ordinary run executes a schedule.

    ``instruments``: what reports in this job that a sink is about to commit. One of onceproof's sinks waits there; otherwise
    the driver is killed while the protocol proxy holds its COMMIT.
    """
    parked = "failpoint" in instruments or not instruments
    documents = [_document(strike, parked) for strike in strikes]
    made = Scenario.model_validate({**scenario.to_json(), "chaos": documents})
    return made.faults(FaultSpec)


def _document(strike: Strike, parked: bool) -> dict[str, Any]:
    at: dict[str, Any] = {"batch": strike.batch, "point": str(strike.point)}
    if strike.attempt > 1:
        at["attempt"] = strike.attempt
    if strike.point is Point.BEFORE_SINK_COMMIT and not parked:
        return {"fault": "crash-at-frame", "target": "driver", "service": "postgres", "at": at}
    return {"fault": "crash", "target": "driver", "at": at}


def real_run(loaded: LoadedScenario, scenario: Scenario, faults: Sequence[FaultSpec], folder: Path) -> Verdicts:
    """Run the schedule with real kills, below ``folder``. A run that the machine was too slow for has no verdict. Raises `Interrupted`."""
    inputs = [
        spec.model_copy(
            update={
                "chunks": spec.chunks + _SPARE_CHUNKS,
                "rows": (spec.rows or spec.chunks) * (spec.chunks + _SPARE_CHUNKS) // spec.chunks,
            }
        )
        for spec in scenario.input
    ]
    given = scenario.model_copy(update={"input": inputs, "chaos": list(faults)})
    try:
        result = run(replace(loaded, scenario=given), runs_dir=folder)
    except (EnvironmentProblem, WaitTimeout) as failed:
        return _without(failed)
    return verdicts_of(result.verdict, result.run_dir)


def verdicts_of(verdict: Verdict, run_dir: Path) -> Verdicts:
    hits = sum(fault.hit for fault in verdict.faults)
    why = verdict.reasons[0].partition("\n")[0] if verdict.reasons else ""
    hit = hits == len(verdict.faults)
    if not hit and verdict.outcome is Outcome.VIOLATED:
        why = f"{why} ({hits} of {times(len(verdict.faults), 'fault')} hit)"
    return Verdicts(verdict.outcome.value, verdict.anomalies(), why, str(run_dir), hit)


def _without(failed: OnceproofError) -> Verdicts:
    where = None if failed.run_dir is None else str(failed.run_dir)
    return Verdicts("error", {}, failed.message.partition("\n")[0], where, False)
