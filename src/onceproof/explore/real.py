"""A schedule as an ordinary run, with real kills: the faults that a scenario would name, and the run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onceproof.base.errors import EnvironmentProblem, OnceproofError, WaitTimeout
from onceproof.base.words import times
from onceproof.explore.exploration import Faults, State, Verdicts
from onceproof.explore.schedules import ORDER, Place
from onceproof.faults import survey
from onceproof.faults.job import at_checkpoint, at_frames
from onceproof.faults.placement import has_own_file_manager
from onceproof.judge.findings import VERDICT_FILE, Outcome, Verdict
from onceproof.run import run
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.scenario_files.load import LoadedScenario
from onceproof.stores.contract import CommitsLikeCheckpoints, store_of
from onceproof.warm.attempts import Strike

#: An ordinary run gets one more chunk of input than faults need: it may put the first chunk into batch 0.
_SPARE_CHUNKS = 1
_LOG_POINTS = tuple(point for point in ORDER if point is not Point.BEFORE_SINK_COMMIT)


#: Faults without ``at`` by which a run crashes the driver before its sink's commit. One of onceproof's sinks waits there; for
#: another one, the protocol proxy holds its COMMIT.
WAITING_SINK: Mapping[str, Any] = {"fault": "crash", "target": "driver"}
HELD_COMMIT: Mapping[str, Any] = {"fault": "crash-at-frame", "target": "driver", "service": "postgres"}


@dataclass(frozen=True)
class Surveyed:
    """What an ordinary run without faults shows of the job."""

    verdicts: Verdicts
    points: tuple[Point, ...]
    """Those at which its driver can be crashed."""
    not_explored: Mapping[str, str]
    """Other point, or commit -> why it is not explored."""
    before_commit: Mapping[str, Any] | None
    """As `Plan.before_commit`."""


def fault_specs(
    scenario: Scenario, strikes: Sequence[Strike], before_commit: Mapping[str, Any] | None
) -> list[FaultSpec]:
    """The faults with which an ordinary run executes a schedule. ``before_commit``: as `Plan.before_commit`."""
    documents = [_document(strike, before_commit) for strike in strikes]
    made = Scenario.model_validate({**scenario.to_json(), "chaos": documents})
    return made.faults(FaultSpec)


def _document(strike: Strike, before_commit: Mapping[str, Any] | None) -> dict[str, Any]:
    at: dict[str, Any] = {"batch": strike.batch, "point": str(strike.point)}
    if strike.attempt > 1:
        at["attempt"] = strike.attempt
    if strike.point is not Point.BEFORE_SINK_COMMIT:
        return {"fault": "crash", "target": "driver", "at": at}
    assert before_commit is not None, "a point that no fault can reach is not explored"
    return {**before_commit, "at": at}


def survey_run(loaded: LoadedScenario, scenario: Scenario, folder: Path) -> Surveyed:
    """Run the job without faults, below ``folder``, and look at which points its driver can be crashed.

    Raises as a run does: without this run nothing can be said of any schedule.
    """
    given = _given(loaded, scenario, ())
    result = run(given, runs_dir=folder, survey=True)
    found = verdicts_of(result.verdict, result.run_dir)
    if found.state is not State.HELD:  # nothing is explored, and it may not have come to its end
        return Surveyed(found, (), {}, None)
    job = survey.read(result.run_dir, given.scenario)
    left_out: dict[str, str] = {}
    before_commit: Mapping[str, Any] | None = None
    if any(query.parks for query in job.queries) or _waits_in_log(scenario):
        before_commit = WAITING_SINK
    else:
        tries = [one for one in at_frames(job, {"target": "driver"}) if one.point is Point.BEFORE_SINK_COMMIT]
        for one in tries:
            why = one.n_a or one.gap
            if why is None and before_commit is None:
                before_commit = {"fault": "crash-at-frame", **one.settings}
                continue
            name = f"{one.point}, {one.words}" if one.words else str(one.point)
            left_out[name] = why or "only the first commit of a batch is struck; use `onceproof qualify`"
    unreached = {one.point: one.n_a for one in at_checkpoint(job, _LOG_POINTS, {}) if one.n_a is not None}
    left_out |= {str(point): why for point, why in unreached.items()}
    points = tuple(
        point
        for point in ORDER
        if point not in unreached and (point is not Point.BEFORE_SINK_COMMIT or before_commit is not None)
    )
    return Surveyed(found, points, left_out, before_commit)


def _waits_in_log(scenario: Scenario) -> bool:
    """Whether one of Spark's own sinks commits by a log like a checkpoint's: the checkpoint file system waits in its writes."""
    stores = map(store_of, scenario.outputs.values())
    return any(isinstance(store, CommitsLikeCheckpoints) for store in stores) and not has_own_file_manager(scenario)


def real_run(loaded: LoadedScenario, scenario: Scenario, faults: Sequence[FaultSpec], folder: Path) -> Verdicts:
    """Run the schedule with real kills, below ``folder``. A run that the machine did not finish has no verdict. Raises `Interrupted`."""
    try:
        result = run(_given(loaded, scenario, faults), runs_dir=folder)
    except (EnvironmentProblem, WaitTimeout) as failed:
        return _without(failed)
    return verdicts_of(result.verdict, result.run_dir)


def _given(loaded: LoadedScenario, scenario: Scenario, faults: Sequence[FaultSpec]) -> LoadedScenario:
    inputs = [
        spec.model_copy(
            update={
                "chunks": spec.chunks + _SPARE_CHUNKS,
                "rows": (spec.rows or spec.chunks) * (spec.chunks + _SPARE_CHUNKS) // spec.chunks,
            }
        )
        for spec in scenario.input
    ]
    return replace(loaded, scenario=scenario.model_copy(update={"input": inputs, "chaos": list(faults)}))


def verdicts_of(verdict: Verdict, run_dir: Path) -> Verdicts:
    hits = sum(fault.hit for fault in verdict.faults)
    why = verdict.reasons[0].partition("\n")[0] if verdict.reasons else ""
    hit = hits == len(verdict.faults)
    if not hit and verdict.outcome is Outcome.VIOLATED:
        why = f"{why} ({hits} of {times(len(verdict.faults), 'fault')} hit)"
    return Verdicts(verdict.outcome.value, verdict.anomalies(), why, str(run_dir), hit)


def violated_without_result(folder: Path, known: Collection[str]) -> dict[Faults, Verdicts]:
    """Schedule -> verdict, of the runs below ``folder`` that were judged violated and are not ``known`` (the names of their directories).

    A signal may come between the verdict on a run and the line that an exploration stores of it. The schedule would be executed
    again, and might hold.
    """
    found: dict[Faults, Verdicts] = {}
    for run_dir in sorted(folder.glob("*")):
        if run_dir.is_symlink() or run_dir.name in known:
            continue
        with suppress(OSError, ValueError, RecursionError):
            verdict = Verdict.from_json(run_dir / VERDICT_FILE)
            placed = [(one.batch, one.point) for one in verdict.faults]
            faults = tuple(
                Place(batch, Point(point)) for batch, point in placed if batch is not None and point is not None
            )
            if verdict.outcome is Outcome.VIOLATED and len(faults) == len(verdict.faults):
                found[faults] = verdicts_of(verdict, run_dir)
    return found


def _without(failed: OnceproofError) -> Verdicts:
    where = None if failed.run_dir is None else str(failed.run_dir)
    return Verdicts("error", {}, failed.message.partition("\n")[0], where, False)
