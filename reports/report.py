"""What a report is: one renderer per output format, one file each under ``reports/``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from onceproof.base.errors import Interrupted, OnceproofError
from onceproof.base.registry import Registry
from onceproof.judge.findings import Outcome, Verdict, worst
from onceproof.scenario.model import ExpectedVerdict

#: The page of a run, in its directory.
PAGE_FILE = "report.html"


@dataclass(frozen=True)
class ScenarioResult:
    """The outcome of a scenario: a verdict with its run directory, or the error that prevented one.

    With an ``error``, ``verdict`` is the one that the run itself stored before it ended (error or interrupted; with claim, seed
    and seconds), if there is one.
    """

    scenario: str
    expect: ExpectedVerdict
    verdict: Verdict | None = None
    run_dir: Path | None = None
    error: OnceproofError | Interrupted | None = None

    @property
    def outcome(self) -> Outcome:
        if self.verdict is not None and self.error is None:
            return self.verdict.outcome
        return Outcome.INTERRUPTED if isinstance(self.error, Interrupted) else Outcome.ERROR

    @property
    def expect_met(self) -> bool:
        """Whether the verdict is the expected one, with exactly the expected anomalies."""
        if self.verdict is None or self.error is not None:
            return False
        anomalies = set(self.verdict.anomalies())
        return self.outcome.value == self.expect.verdict and anomalies == set(self.expect.anomalies)


@dataclass(frozen=True)
class RunSet:
    """The scenarios of one command.

    ``by_expectation``: a scenario passes if its ``expect`` is met (``run --all``); otherwise only if it held.
    """

    results: tuple[ScenarioResult, ...]
    by_expectation: bool = False

    def passed(self, result: ScenarioResult) -> bool:
        return result.expect_met if self.by_expectation else result.outcome is Outcome.HELD

    def outcome(self) -> Outcome:
        """The outcome of all scenarios together: the command returns its exit code.

        Without ``by_expectation``, the worst verdict. With it, held if every expectation is met, otherwise the worst verdict
        among the unmet ones; a scenario that held although it should not have counts as violated, because a bug was missed.
        """
        outcomes = [result.outcome for result in self.results]
        if not self.by_expectation or Outcome.INTERRUPTED in outcomes:
            return worst(outcomes)
        unmet = [result.outcome for result in self.results if not result.expect_met]
        if not unmet:
            return Outcome.HELD
        return worst([Outcome.VIOLATED if outcome is Outcome.HELD else outcome for outcome in unmet])


class Report(Protocol):
    about: ClassVar[str]

    def render(self, runs: RunSet) -> str:
        """The whole report as text. Reads values only, never a live service."""


reports: Registry[type[Report]] = Registry("report", "onceproof.reports", "onceproof.reports", Report)
