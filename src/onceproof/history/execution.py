"""One execution of a scenario: its scenario, its run directory and its timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceproof.base.process import machine, peak_rss_kib
from onceproof.base.timeline import Listener, Timeline
from onceproof.base.version import __version__
from onceproof.history.run_directory import RunDir
from onceproof.history.run_record import SharedStackRecord, StoredScenario
from onceproof.history.schema import VERSION
from onceproof.scenario.model import Scenario
from onceproof.scenario.tiers import Tier
from onceproof.stack.external.names import RunNames, identity, prefixed
from onceproof.stack.external.profile import StackProfile

if TYPE_CHECKING:
    from onceproof.stack.sharing.shared import SharedStack


@dataclass(frozen=True)
class Execution:
    scenario: Scenario
    path: Path
    """The scenario's file, even if the scenario was changed after it was loaded."""
    directory: RunDir
    timeline: Timeline
    profile: StackProfile | None = field(default=None, repr=False)
    """The external stack that it uses, if any. Holds secrets: only its name is stored."""
    survey: bool = False
    """Also note what the job commits (`onceproof.faults.survey`)."""
    shared: SharedStack | None = field(default=None, repr=False)
    """Lends it a stack that serves several executions; None: it starts services of its own."""
    tier: Tier = "real"
    """How the job is restarted after a kill, where that is possible."""
    number: int = 0
    """From 1 where several executions share services: makes their names there distinct."""

    @classmethod
    def create(
        cls,
        scenario: Scenario,
        path: Path,
        runs_dir: Path,
        listeners: Sequence[Listener] = (),
        *,
        survey: bool = False,
        shared: SharedStack | None = None,
        tier: Tier = "real",
    ) -> Execution:
        """Make an execution with a new directory below ``runs_dir``. Raises `EnvironmentProblem` if it cannot be written."""
        directory = RunDir.create(runs_dir, scenario.name)
        timeline = Timeline(directory.events)
        for listener in listeners:
            timeline.listen(listener)
        return cls(scenario, Path(path), directory, timeline, survey=survey, tier=tier, shared=shared)

    def on(self, profile: StackProfile | None) -> Execution:
        """The same execution on an external stack (None: on its own services), with the names that its topics have there."""
        if profile is None:
            return self
        names = RunNames(identity(), self.directory.path.name)
        return replace(self, scenario=prefixed(self.scenario, names), profile=profile)

    def of(self, scenario: Scenario, where: Path) -> Execution:
        """An execution of another scenario, without a survey, in a new directory at ``where`` inside another run."""
        inner = RunDir.below(where)
        return replace(self, scenario=scenario, directory=inner, timeline=Timeline(inner.events), survey=False)

    @property
    def here(self) -> Path:
        """The folder of the scenario's file."""
        return self.path.resolve().parent

    @property
    def prefix(self) -> str:
        """The prefix of this execution's names at shared services."""
        return f"replay{self.number}." if self.number else ""

    def begins(self) -> None:
        """Record what is executed."""
        self.directory.update(
            schema=VERSION,
            onceproof=__version__,
            scenario=StoredScenario.of(self.scenario),
            scenario_path=str(self.path),
            seed=self.scenario.seed,
            wall_start=self.timeline.wall_start,
            machine=machine(),
            tier=self.tier,
        )
        if self.profile is not None:
            self.directory.update(stack_profile=self.profile.name)

    def services_taken_back(self) -> AbstractContextManager[None]:
        """Around all that uses its services: at the end they are cleaned for the next execution, if they are shared."""
        return nullcontext() if self.shared is None else self.shared.taken_back(self.directory.logs, self.timeline)

    def started(self, versions: Mapping[str, Any]) -> None:
        """Record the versions of its services, and whether other executions used them before."""
        self.directory.update(versions=dict(versions))
        if self.shared is not None and self.shared.is_lent:
            self.directory.update(shared_stack=SharedStackRecord(**asdict(self.shared.use())))

    def phase(self, name: str) -> None:
        self.timeline.emit("phase", name=name)

    def seconds(self) -> float:
        return round(self.timeline.now(), 3)

    def observed(self) -> None:
        """Record that its history is complete."""
        self.directory.update(observed=True, seconds=self.seconds(), harness_peak_rss_kib=peak_rss_kib())
