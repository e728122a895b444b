"""Runs the scenarios and qualifications of a gate within its budget, the most informative first, and decides what each result means."""

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
from onceproof.gate.baseline import Baseline, Coverage, HeldCells
from onceproof.gate.settings import GateItem, GateQualification, GateScenario
from onceproof.judge.findings import Outcome, worst
from onceproof.qualify.session import Qualification

#: In the runs folder: the scenarios that did not pass the last time, for the order.
LAST_FAILED = "gate-last-failed.json"
#: With less, a qualification would end before its run without faults.
_LEAST_S = 30.0
_NAMED = 3


class Status(StrEnum):
    """The result of one scenario or qualification in the gate."""

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
    """One scenario or qualification of the gate and its result."""

    path: str
    """Of a qualification with `qualify` before it (`onceproof.gate.settings.GateQualification.name`)."""
    expect: str
    status: Status
    why: str
    run: Run | None = None
    coverage: Coverage | None = None
    qualification: Qualification | None = None


@dataclass(frozen=True)
class GateResult:
    rows: tuple[GateRow, ...]
    """The rows in the order of their runs, then what did not run, then what is only in the baseline."""

    @property
    def outcome(self) -> Outcome:
        return worst([row.status.outcome for row in self.rows])

    def baseline(self) -> Baseline:
        """The coverage of this gate."""
        return Baseline(
            scenarios={row.path: row.coverage for row in self.rows if row.coverage is not None},
            qualifications={
                row.path: HeldCells.of(row.qualification) for row in self.rows if row.qualification is not None
            },
        )


def ordered(items: Sequence[GateItem], last_failed: Iterable[str], known: Baseline) -> list[GateItem]:
    """Scenarios, then qualifications, which use whatever is left of the budget.

    Of each the most informative first: what failed the last time, the known-bad ones, then the shortest.
    """
    failed = set(last_failed)

    def rank(item: GateItem) -> tuple[bool, bool, bool, float]:
        took = known.seconds(item.name)
        is_long = isinstance(item, GateQualification)
        return (is_long, item.name not in failed, item.expect == "held", float("inf") if took is None else took)

    return sorted(items, key=rank)


def work(
    items: Sequence[GateItem],
    known: Baseline,
    execute: Callable[[GateScenario], Run],
    qualify: Callable[[GateQualification, float], Qualification],
    *,
    budget_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> GateResult:
    """Run them in this order while the budget lasts.

    A scenario begins only if the time that the baseline says it took is left. ``qualify`` takes the seconds that it may use at
    most. Both may raise `OnceproofError`: the others still run.
    """
    began = clock()
    rows: list[GateRow] = []
    skipped: list[GateRow] = []
    for item in items:
        left = budget_s - (clock() - began)
        needs = _LEAST_S if isinstance(item, GateQualification) else known.seconds(item.name) or 0.0
        if left <= needs:
            why = f"{max(left, 0):.0f} s of the budget of {budget_s:.0f} s were left"
            skipped.append(GateRow(item.name, item.expect, Status.NOT_RUN, why))
            continue
        try:
            if isinstance(item, GateQualification):
                done = qualify(item, min(left, item.budget_s))
                rows.append(judged_qualification(item, done, known.qualifications.get(item.name)))
            else:
                rows.append(judged(item, execute(item), known.scenarios.get(item.name)))
        except OnceproofError as error:
            rows.append(GateRow(item.name, item.expect, Status.ERROR, error.message.splitlines()[0]))
    listed = {item.name for item in items}
    gone = [
        GateRow(name, "", Status.LESS_COVERAGE, "is in the baseline, and the gate no longer lists it")
        for name in (*known.scenarios, *known.qualifications)
        if name not in listed
    ]
    return GateResult((*rows, *skipped, *gone))


def judged_qualification(item: GateQualification, result: Qualification, before: HeldCells | None) -> GateRow:
    """What the qualification means for the gate: no cell may be violated, each that held before must hold again, and no run may be
    in doubt."""
    found = HeldCells.of(result)
    reachable = [cell for cell in result.cells if cell.reachable]
    violated = [cell.title() for cell in reachable if cell.verdict is Outcome.VIOLATED]
    left_out = [cell.title() for cell in reachable if not cell.exercised and cell.verdict is None]

    def row(status: Status, why: str) -> GateRow:
        return GateRow(item.name, item.expect, status, why, qualification=result)

    undecided = [cell.title() for cell in reachable if cell.verdict is Outcome.INCONCLUSIVE]
    doubt = f"; in doubt: {result.unclear[0]}" if result.unclear else ""
    rest = _named("; left out", left_out) + _named("; not decided", undecided) + doubt
    if not result.cells:
        why = f"without any fault it is {result.first.outcome}, so no fault was tried"
        if result.first.outcome is not Outcome.VIOLATED:
            return row(Status.INCONCLUSIVE, why)
        return row(Status.REGRESSION if item.expect == "held" else Status.PASSED, why)
    if violated or result.unclaimed:
        what = _named("violated", violated) or "violated, by no cell that is known"
        return row(Status.REGRESSION if item.expect == "held" else Status.PASSED, what)
    if item.expect == "violated":
        status = Status.INCONCLUSIVE if rest or not reachable else Status.NOT_CAUGHT
        return row(status, f"no cell is violated, although it is known to be bad{rest}")
    names = {cell.name: cell.title() for cell in result.cells}
    lost = [names.get(name, name) for name in before.cells if name not in found.cells] if before is not None else []
    if losses := _less_examined(found, before):
        return row(Status.LESS_COVERAGE, "; ".join(losses))
    if lost and set(lost) <= set(left_out) and result.progress.ended == "budget":
        return row(Status.INCONCLUSIVE, _named("held before, and the budget ended first", lost))
    if lost:
        return row(Status.LESS_COVERAGE, _named("no longer shown to hold", lost))
    held = f"{len(found.cells)} of {times(len(reachable), 'reachable cell')} held"
    if not found.cells or doubt or (undecided and before is None):
        return row(Status.INCONCLUSIVE, f"{held}{rest}")
    return row(Status.PASSED, f"{held}{_unknown(before)}{rest}")


def _less_examined(now: HeldCells, before: HeldCells | None) -> list[str]:
    if before is None or before.first is None or now.first is None:
        return []
    return list(now.first.losses(before.first))


def _named(what: str, titles: Sequence[str]) -> str:
    """``; left out: A; B; and 3 more``; nothing without titles."""
    more = f"; and {len(titles) - _NAMED} more" if len(titles) > _NAMED else ""
    return f"{what}: {'; '.join(titles[:_NAMED])}{more}" if titles else ""


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
        return row(Status.REGRESSION, found or reason)  # a job that never recovers need not show an anomaly
    if scenario.expect == "violated" and verdict.outcome is Outcome.HELD:
        return row(Status.NOT_CAUGHT, f"{verdict.word}, although it is known to be bad")
    if missing := [name for name in _known_bad_by(scenario, run) if name not in verdict.anomalies()]:
        return row(Status.NOT_CAUGHT, f"no {', '.join(missing)}, but {found or reason}")
    losses = [] if before is None else list(coverage.losses(before))
    if losses:
        return row(Status.LESS_COVERAGE, "; ".join(losses))
    hit = times(len(coverage.faults), "fault") + " hit"
    new = _unknown(before)
    return row(Status.PASSED, f"{found}, {hit}{new}" if found else f"{hit}{new}")


def _unknown(before: Coverage | HeldCells | None) -> str:
    """What could not be compared, because the baseline does not have it."""
    if before is None:
        return "; not in the baseline yet"
    return f"; the baseline lacks {before.lacking}: onceproof gate --update adds it" if before.lacking else ""


def _known_bad_by(scenario: GateScenario, run: Run) -> list[str]:
    """The anomalies that a known-bad scenario must show: the one that the gate names, else those that the scenario itself expects."""
    if scenario.anomaly is not None:
        return [scenario.anomaly]
    return list(run.scenario.expect.anomalies) if scenario.expect == "violated" else []


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
