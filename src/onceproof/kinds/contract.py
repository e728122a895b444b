"""What a kind of pipeline is: how one is prepared, started, driven through its input under faults, and its history collected.

`onceproof.run` and `onceproof.explore` call every kind alike. Where kinds differ, they are asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Protocol

from onceproof.base.registry import Registry
from onceproof.base.timeline import Timeline
from onceproof.history.execution import Execution
from onceproof.history.writer import HistoryWriter
from onceproof.scenario.model import Scenario
from onceproof.stack.processes.owner import Owner


class Services(Protocol):
    """What a pipeline runs against, up and healthy."""

    def versions(self) -> Mapping[str, Any]:
        """Component -> version."""


class Start(Protocol):
    def __call__(self, owner: Owner, folder: Path, timeline: Timeline) -> Services:
        """Start the services; their logs go to ``folder/logs``. Raises `ServiceFailed`."""


class Pipeline(Protocol):
    """The pipeline of one execution. Called in this order."""

    def start(self) -> AbstractContextManager[object]:
        """Start it, its instruments in place before its first instruction. At the end of the block nothing of it runs, and
        on the way out of a failed run its faults are healed as far as that is quickly done."""

    def drive(self) -> None:
        """Feed it under faults until its input is drained, or there is no use in waiting. Judges nothing."""

    def heal(self) -> None:
        """Undo every fault that is still in force."""

    def collect(self) -> None:
        """Write what was observed, once it has stopped: the history's tables, and the facts of ``run.json``."""


class PipelineKind(Protocol):
    about: ClassVar[str]
    """One line for listings."""

    def fetch(self, scenario: Scenario, *, survey: bool) -> Start:
        """Have what the services need on this machine, and say how to start them. Raises `EnvironmentProblem`."""

    def prepare(self, execution: Execution, services: Any, owner: Owner, writer: HistoryWriter) -> Pipeline:
        """Make what is there before the pipeline starts: topics, tables, queues. ``services`` are of this kind's `Start`."""


pipelines: Registry[type[PipelineKind]] = Registry("kind of pipeline", "onceproof.kinds", "onceproof.pipelines")


def kind_of(scenario: Scenario) -> PipelineKind:
    return pipelines.get(scenario.pipeline.kind)()
