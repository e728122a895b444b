"""A scenario file as a test."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from onceproof.pytest_plugin.harness import Harness
from onceproof.reports.report import ScenarioResult
from onceproof.scenario_files.lines import line_of_verdict
from onceproof.scenario_files.load import LoadedScenario, load_file


class NotAsExpected(AssertionError):
    """The verdict is not the one that the scenario expects. The message has the finding and the path of the report."""


class ScenarioFile(pytest.File):
    """The collector of one scenario file: it has one test."""

    markers: tuple[str, ...] = ()

    @classmethod
    def of(cls, parent: pytest.Collector, path: Path, markers: tuple[str, ...]) -> ScenarioFile:
        file: ScenarioFile = cls.from_parent(parent, path=path)
        file.markers = markers
        return file

    def collect(self) -> Iterable[pytest.Item]:
        item: ScenarioItem = ScenarioItem.from_parent(self, name=self.path.stem.removesuffix(".onceproof"))
        for marker in ("onceproof", *self.markers):
            item.add_marker(marker)
        yield item


class ScenarioItem(pytest.Item):
    """Runs the scenario, and passes if the verdict and the anomalies are those of its ``expect`` (default: held)."""

    loaded: LoadedScenario

    def setup(self) -> None:
        self.loaded = load_file(self.path)

    def runtest(self) -> None:
        run = Harness(self).run(self.loaded)
        expect = run.scenario.expect
        result = ScenarioResult(run.scenario.name, expect, run.verdict, run.run_dir)
        if not result.expect_met:
            raise NotAsExpected(run.explain(f"expected {', '.join([expect.verdict, *expect.anomalies])}"))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: str | None = None) -> str:
        if isinstance(excinfo.value, NotAsExpected):
            where = os.path.relpath(self.path, self.config.invocation_params.dir)
            return f"{where}:{line_of_verdict(self.path)}: {excinfo.value}"
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, line_of_verdict(self.path) - 1, f"scenario {self.name}"
