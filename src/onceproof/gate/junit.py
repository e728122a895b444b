"""The results of a gate as JUnit XML: one test case per scenario, which passes if the gate says so."""

from __future__ import annotations

from onceproof.api.runs import Run
from onceproof.gate.session import GateResult, GateRow, Status
from onceproof.reports import junit
from onceproof.reports.report import ScenarioResult


def render(result: GateResult) -> str:
    """A scenario that could not be judged is an ``error``; one with any other result but *passed* is a ``failure``."""
    return junit.document(map(_case, result.rows))


def _case(row: GateRow) -> junit.Case:
    run, status = row.run, str(row.status)
    verdict = None if run is None else run.verdict
    about = {"expected": row.expect} if row.expect else {}  # one that is only in the baseline expects nothing
    about |= {} if run is None else junit.properties(run.verdict.outcome.value, verdict, run.run_dir)
    text = row.why if run is None else f"{row.why}\n{junit.arguments(run.verdict, run.run_dir)}"
    tag = "error" if row.status is Status.ERROR else "failure"
    problem = junit.Problem(tag, status, f"{status}: {row.why}", text) if row.status is not Status.PASSED else None
    return junit.Case(
        row.path,
        0.0 if verdict is None else verdict.seconds,
        {"result": status, **about},
        problem,
        row.why if run is None else junit.terminal_text(_result(run)),
    )


def _result(run: Run) -> ScenarioResult:
    return ScenarioResult(run.scenario.name, run.scenario.expect, run.verdict, run.run_dir)
