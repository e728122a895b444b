"""What a report is: one renderer an output form, one file each under ``reports/``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from onceproof.base.errors import Interrupted, OnceproofError
from onceproof.base.registry import Registry
from onceproof.judge.findings import Outcome, Verdict, worst
from onceproof.scenario.model import ExpectedVerdict


@dataclass(frozen=True)
class ScenarioResult:
    """One scenario's outcome: a verdict with its run directory, or the error that stood in the way of one.

    With an ``error``, ``verdict`` is the one that the run itself left behind (error or interrupted; claim, seed,
    seconds), if it came so far.
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
        """The outcome of all of them together, whose exit code the command returns.

        Several named scenarios: the worst verdict. By expectation: held if every expectation is met, else the worst
        among the unmet, where one that held although it should not have counts as violated: an alarm did not ring.
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


reports: Registry[type[Report]] = Registry("report", "onceproof.reports", "onceproof.reports")
