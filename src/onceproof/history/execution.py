"""One execution of a scenario: which one it is, and where it leaves what was observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onceproof import __version__
from onceproof.base.process import peak_rss_kib
from onceproof.base.timeline import Listener, Timeline
from onceproof.history.run_directory import RunDir
from onceproof.history.run_record import StoredScenario
from onceproof.history.schema import VERSION
from onceproof.scenario.model import Scenario


@dataclass(frozen=True)
class Execution:
    scenario: Scenario
    path: Path
    """The scenario's file, also where the scenario was changed since."""
    directory: RunDir
    timeline: Timeline
    survey: bool = False
    """Also note what the job commits (`onceproof.faults.survey`)."""
    number: int = 0
    """From 1 where several executions share their services: keeps their names apart there."""

    @classmethod
    def create(
        cls,
        scenario: Scenario,
        path: Path,
        runs_dir: Path,
        listeners: Sequence[Listener] = (),
        *,
        survey: bool = False,
    ) -> Execution:
        """With a directory of its own below ``runs_dir``. Raises `EnvironmentProblem` where it cannot be written."""
        directory = RunDir.create(runs_dir, scenario.name)
        timeline = Timeline(directory.events)
        for listener in listeners:
            timeline.listen(listener)
        return cls(scenario, Path(path), directory, timeline, survey)

    def of(self, scenario: Scenario, where: Path) -> Execution:
        """One of another scenario, without a survey, in a directory of its own inside another one's."""
        inner = RunDir.below(where)
        return replace(self, scenario=scenario, directory=inner, timeline=Timeline(inner.events), survey=False)

    @property
    def here(self) -> Path:
        """The folder of the scenario's file."""
        return self.path.resolve().parent

    @property
    def prefix(self) -> str:
        """What the names of this execution begin with, at services that it shares."""
        return f"replay{self.number}." if self.number else ""

    def begins(self) -> None:
        self.directory.update(
            schema=VERSION,
            onceproof=__version__,
            scenario=StoredScenario.of(self.scenario),
            scenario_path=str(self.path),
            seed=self.scenario.seed,
            wall_start=self.timeline.wall_start,
        )

    def phase(self, name: str) -> None:
        self.timeline.emit("phase", name=name)

    def seconds(self) -> float:
        return round(self.timeline.now(), 3)

    def observed(self) -> None:
        """Its history is whole."""
        self.directory.update(observed=True, seconds=self.seconds(), harness_peak_rss_kib=peak_rss_kib())
