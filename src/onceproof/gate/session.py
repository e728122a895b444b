"""Runs the scenarios of a gate within its budget, the most informative first, and decides what each result means."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from onceproof.api.runs import Run
from onceproof.base.errors import OnceproofError
from onceproof.base.words import times
from onceproof.gate.baseline import Baseline, Coverage
from onceproof.gate.settings import GateScenario
from onceproof.judge.findings import Outcome, worst

#: In the runs folder: the scenarios that did not pass the last time, for the order.
LAST_FAILED = "gate-last-failed.json"
_OLD = "; the baseline lacks its outputs and its oracle: onceproof gate --update adds them"


class Status(StrEnum):
    """The result of one scenario in the gate."""

    PASSED = "passed"
    REGRESSION = "regression"
    NOT_CAUGHT = "not caught"
    LESS_COVERAGE = "less coverage"
    INCONCLUSIVE = "inconclusive"
    NOT_RUN = "not run"
    ERROR = "error"

    @property
    def outcome(self) -> Outcome:
        """The outcome that it counts as, for the exit code."""
        return {
            "passed": Outcome.HELD,
            "inconclusive": Outcome.INCONCLUSIVE,
            "not run": Outcome.INCONCLUSIVE,
            "error": Outcome.ERROR,
        }.get(self.value, Outcome.VIOLATED)


@dataclass(frozen=True)
class GateRow:
    """One scenario of the gate and its result."""

    path: str
    expect: str
    status: Status
    why: str
    run: Run | None = None
    coverage: Coverage | None = None


@dataclass(frozen=True)
class GateResult:
    rows: tuple[GateRow, ...]
    """The rows in the order of their runs, then the scenarios that did not run, then those that are only in the baseline."""

    @property
    def outcome(self) -> Outcome:
        return worst([row.status.outcome for row in self.rows])

    def baseline(self) -> Baseline:
        """The coverage of this gate."""
        return Baseline(scenarios={row.path: row.coverage for row in self.rows if row.coverage is not None})


def ordered(scenarios: Sequence[GateScenario], last_failed: Iterable[str], known: Baseline) -> list[GateScenario]:
    """The most informative first: those that failed the last time, then the known-bad ones, then the shortest."""
    failed = set(last_failed)

    def rank(scenario: GateScenario) -> tuple[bool, bool, float]:
        return (scenario.path not in failed, scenario.expect == "held", seconds(scenario))

    def seconds(scenario: GateScenario) -> float:
        covered = known.scenarios.get(scenario.path)
        return float("inf") if covered is None else covered.seconds

    return sorted(scenarios, key=rank)


def work(
    scenarios: Sequence[GateScenario],
    known: Baseline,
    execute: Callable[[GateScenario], Run],
    *,
    budget_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> GateResult:
    """Run the scenarios in this order while the budget lasts.

    A run begins only if the time that the baseline says it took is left. ``execute`` may raise `OnceproofError`: the others
    still run.
    """
    began = clock()
    rows: list[GateRow] = []
    skipped: list[GateRow] = []
    for scenario in scenarios:
        covered = known.scenarios.get(scenario.path)
        left = budget_s - (clock() - began)
        if left <= (0.0 if covered is None else covered.seconds):
            why = f"{max(left, 0):.0f} s of the budget of {budget_s:.0f} s were left"
            skipped.append(GateRow(scenario.path, scenario.expect, Status.NOT_RUN, why))
            continue
        try:
            run = execute(scenario)
        except OnceproofError as error:
            rows.append(GateRow(scenario.path, scenario.expect, Status.ERROR, error.message.splitlines()[0]))
            continue
        rows.append(judged(scenario, run, covered))
    listed = {scenario.path for scenario in scenarios}
    gone = [
        GateRow(path, "", Status.LESS_COVERAGE, "is in the baseline, and the gate no longer lists it")
        for path in known.scenarios
        if path not in listed
    ]
    return GateResult((*rows, *skipped, *gone))


def judged(scenario: GateScenario, run: Run, before: Coverage | None) -> GateRow:
    """What the run means for the gate, compared with the coverage in the baseline, if it is there."""
    verdict = run.verdict
    coverage = Coverage.of(verdict, run.scenario)

    def row(status: Status, why: str) -> GateRow:
        return GateRow(scenario.path, scenario.expect, status, why, run, coverage)

    found = ", ".join(f"{name} {count:,}" for name, count in sorted(verdict.anomalies().items()))
    reason = next(iter(verdict.reasons), verdict.word).splitlines()[0]
    if verdict.outcome not in (Outcome.HELD, Outcome.VIOLATED):
        return row(Status.INCONCLUSIVE, reason)
    if scenario.expect == "held" and verdict.outcome is Outcome.VIOLATED:
        return row(Status.REGRESSION, found)
    if scenario.expect == "violated" and verdict.outcome is Outcome.HELD:
        return row(Status.NOT_CAUGHT, f"{verdict.word}, although it is known to be bad")
    if scenario.anomaly is not None and scenario.anomaly not in verdict.anomalies():
        return row(Status.NOT_CAUGHT, f"no {scenario.anomaly}, but {found}")
    losses = [] if before is None else list(coverage.losses(before))
    if losses:
        return row(Status.LESS_COVERAGE, "; ".join(losses))
    hit = times(len(coverage.faults), "fault") + " hit"
    new = "; not in the baseline yet" if before is None else _OLD if before.lacks_outputs else ""
    return row(Status.PASSED, f"{found}, {hit}{new}" if found else f"{hit}{new}")


def read_last_failed(runs_dir: Path) -> list[str]:
    """The scenarios that did not pass the last time; none if that is not known."""
    try:
        names = json.loads((runs_dir / LAST_FAILED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def write_last_failed(runs_dir: Path, result: GateResult) -> None:
    """Store the scenarios that did not pass. They only decide the next order, so a failure to write does not fail the gate."""
    failed = [row.path for row in result.rows if row.status not in (Status.PASSED, Status.NOT_RUN)]
    with suppress(OSError):
        runs_dir.mkdir(parents=True, exist_ok=True)
        (runs_dir / LAST_FAILED).write_text(json.dumps(failed), encoding="utf-8")
