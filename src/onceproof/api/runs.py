"""Run a scenario, or judge a stored run again, and assert what the verdict is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onceproof.base.errors import UsageError
from onceproof.base.registry import suggest
from onceproof.base.timeline import Listener
from onceproof.history.not_a_run import check_exists
from onceproof.judge.checker import checkers
from onceproof.judge.findings import VERDICT_FILE, Finding, Outcome, Verdict
from onceproof.reports import commands, fixes
from onceproof.reports.report import PAGE_FILE
from onceproof.scenario.base import AnyFaultSpec
from onceproof.scenario.model import Scenario
from onceproof.scenario.tiers import Tier
from onceproof.scenario_files.load import LoadedScenario

if TYPE_CHECKING:
    from onceproof.stack.sharing.shared import SharedStack

#: Where the command line and the Python API create run directories, below the current folder.
RUNS = Path("onceproof-runs")
_FINDINGS_SHOWN = 3


@dataclass(frozen=True)
class Run:
    """A run that was judged."""

    scenario: Scenario
    """With the faults that were injected."""
    verdict: Verdict
    run_dir: Path
    """All that was observed. `check` judges it again."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the claim does not allow."""
        return tuple(finding for finding in self.verdict.findings if finding.violates)

    @property
    def report(self) -> Path:
        """The page for the browser, ``report.html``; ``verdict.json`` if the page could not be written."""
        page = self.run_dir / PAGE_FILE
        return page if page.is_file() else self.run_dir / VERDICT_FILE

    def _fixes(self, finding: Finding) -> tuple[str, ...]:
        faults = [
            text
            for fault in self.verdict.faults
            for text in (fault.fault, f"{fault.fault} {fault.target}", fault.point or "")
        ]
        return fixes.of_scenario(finding.anomaly, self.scenario, faults, finding.output)

    def assert_held(self) -> None:
        """Raise `AssertionError` unless every fault hit and the output matches the claim."""
        __tracebackhide__ = True
        if self.verdict.outcome is not Outcome.HELD:
            raise AssertionError(self.explain("expected held"))

    def assert_violated(self, *anomalies: str) -> None:
        """Raise `AssertionError` unless the run is violated, by each of the ``anomalies`` if any are named.

        Raises `UsageError` for an unknown anomaly.
        """
        __tracebackhide__ = True
        for anomaly in anomalies:
            if anomaly not in checkers.names():
                raise UsageError(f"unknown anomaly {anomaly!r}; {suggest(anomaly, checkers.names())}")
        missing = [anomaly for anomaly in anomalies if anomaly not in self.verdict.anomalies()]
        if self.verdict.outcome is not Outcome.VIOLATED or missing:
            raise AssertionError(self.explain(f"expected violated{' by ' if anomalies else ''}{', '.join(anomalies)}"))

    def explain(self, expected: str) -> str:
        """The verdict, the findings with one witness and one fix each, and the path of the report, in a few lines."""
        verdict = self.verdict
        lines = [f"{verdict.scenario}: {verdict.word}, {expected}"]
        for finding in self.findings[:_FINDINGS_SHOWN]:
            lines.append(f"  {finding.anomaly} in {finding.output}: {finding.summary}")
            lines += [f"    {line}" for witness in finding.witnesses[:1] for line in witness.argument.splitlines()]
            lines += [f"    fix: {fix}" for fix in self._fixes(finding)[:1]]
            lines.append(f"    explain: onceproof explain {finding.anomaly}")
        if len(self.findings) > _FINDINGS_SHOWN:
            lines.append(f"  ... and {len(self.findings) - _FINDINGS_SHOWN} more")
        if not self.findings:
            lines += [f"  {line}" for reason in verdict.reasons for line in reason.splitlines()[:1]]
        lines += [f"report: {self.report}", f"judge it again: {commands.check(self.run_dir)}"]
        again = commands.run_again_of(self.run_dir)
        return "\n".join(lines if again is None else [*lines, f"run it again: {again}"])


def run(
    scenario: str | Path | LoadedScenario,
    *,
    chaos: Sequence[AnyFaultSpec] | None = None,
    seed: int | None = None,
    runs_dir: str | Path = RUNS,
    listeners: Sequence[Listener] = (),
    shared: SharedStack | None = None,
    tier: Tier = "real",
) -> Run:
    """Run a scenario and judge it: a file, the name of a shipped scenario, or a loaded one.

    ``chaos``: faults to inject instead of the scenario's own. ``seed``: of generated input, default the scenario's.
    ``listeners`` are called with each event of the run, from several threads. ``tier``: ``real``, or ``kept`` to screen faster.

    It starts services of its own, unless ``shared`` lends it those of earlier runs, clean: ``with SharedStack() as shared``.

    Raises `ScenarioError` and `UsageError` before anything starts, `EnvironmentProblem` if a service or this machine fails.
    Every process that it started is gone when it returns or raises, except shared services.
    """
    from onceproof.api.scenarios import load, with_chaos
    from onceproof.run import run as run_loaded

    loaded = scenario if isinstance(scenario, LoadedScenario) else load(scenario)
    if chaos is not None:
        loaded = with_chaos(loaded, chaos)
    done = run_loaded(loaded, runs_dir=Path(runs_dir), seed=seed, listeners=list(listeners), tier=tier, shared=shared)
    return Run(loaded.scenario, done.verdict, done.run_dir)


def check(run_dir: str | Path) -> Verdict:
    """Judge a stored run again, of this machine or another. Starts nothing, and writes ``verdict.json`` into it.

    Raises `UsageError` if there is no such directory, `HistoryError` if it is not a complete run.
    """
    path = Path(run_dir)
    check_exists(path)
    from onceproof.judge.verdict import check as check_stored

    return check_stored(path)
