"""What the fixture ``onceproof`` gives a test, and what runs a scenario file: a run whose result pytest understands."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from onceproof.api import runs
from onceproof.api.runs import Run
from onceproof.base.errors import EnvironmentProblem, Interrupted
from onceproof.judge.findings import Outcome
from onceproof.pytest_plugin.services import shared_services
from onceproof.reports.report import ScenarioResult
from onceproof.scenario.base import AnyFaultSpec
from onceproof.scenario_files.load import LoadedScenario
from onceproof.stack.fetch.java import find_java
from onceproof.stack.sharing.shared import SharedStack


class Harness:
    """Runs scenarios for one test. Run directories are in ``onceproof-runs`` of pytest's rootdir, unless an option says otherwise."""

    def __init__(self, node: pytest.Item) -> None:
        self._node = node

    def run(
        self,
        scenario: str | Path | LoadedScenario,
        *,
        chaos: Sequence[AnyFaultSpec] | None = None,
        seed: int | None = None,
    ) -> Run:
        """As `onceproof.run`. A path is relative to the test's folder, then to pytest's rootdir.

        Adds verdict and run directory to the test's JUnit properties, unless an ini-option forbids it. Skips the test if there is no Java on a developer's
        machine; in CI (the variable CI is set) that is an error, as a red build is better than one that tests nothing.
        """
        __tracebackhide__ = True
        try:
            with _quiet_clients():
                done = runs.run(
                    self._found(scenario), chaos=chaos, seed=seed, runs_dir=self._runs_dir(), shared=self._shared()
                )
        except EnvironmentProblem:
            if not in_ci() and (problem := _java_problem()) is not None:
                pytest.skip(f"{problem.message} ({problem.hint})" if problem.hint else problem.message)
            raise
        except Interrupted as interrupted:
            raise KeyboardInterrupt(interrupted.message) from None
        if self._node.config.getini("onceproof_junit_properties"):
            self._node.user_properties += [
                ("onceproof.scenario", done.scenario.name),
                ("onceproof.verdict", done.verdict.word),
                ("onceproof.anomalies", ", ".join(sorted(done.verdict.anomalies()))),
                ("onceproof.run", str(done.run_dir)),
            ]
        met = ScenarioResult(done.scenario.name, done.scenario.expect, done.verdict, done.run_dir).expect_met
        if done.verdict.outcome is Outcome.INCONCLUSIVE and not met and self._skips_inconclusive():
            pytest.skip(f"inconclusive: {next(iter(done.verdict.reasons), 'no reason')}")
        return done

    def _found(self, scenario: str | Path | LoadedScenario) -> str | Path | LoadedScenario:
        if isinstance(scenario, LoadedScenario):
            return scenario
        places = (self._node.path.parent / scenario, self._node.config.rootpath / scenario)
        return next((place for place in places if place.is_file()), scenario)

    def _runs_dir(self) -> Path:
        given = self._node.config.getoption("--onceproof-runs")
        return Path(self._node.config.rootpath, given or runs.RUNS)

    def _shared(self) -> SharedStack | None:
        config = self._node.config
        return None if config.getoption("--onceproof-fresh-stack") else shared_services(config)

    def _skips_inconclusive(self) -> bool:
        config = self._node.config
        option: str | None = config.getoption("--onceproof-inconclusive")
        ini: str = config.getini("onceproof_inconclusive")
        return (option or ini) == "skip"


@contextmanager
def _quiet_clients() -> Iterator[None]:
    """Keep what clients log out of a failed test's report: pika logs each connection that a starting broker refuses."""
    pika = logging.getLogger("pika")
    before = pika.level
    pika.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        pika.setLevel(before)


def in_ci() -> bool:
    """Whether a CI server runs this: GitHub, GitLab and most others set CI."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def _java_problem() -> EnvironmentProblem | None:
    try:
        find_java()
    except EnvironmentProblem as problem:
        return problem
    return None
