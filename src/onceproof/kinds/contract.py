"""What a kind of pipeline is: how one is prepared, started, driven through its input under faults, and its history collected.

`onceproof.run` and `onceproof.explore` call every kind alike. Where kinds differ, they are asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from onceproof.base.registry import Registry
from onceproof.base.timeline import Timeline
from onceproof.history.execution import Execution
from onceproof.history.writer import HistoryWriter
from onceproof.scenario.model import Scenario, SparkStack, StackSpec
from onceproof.scenario.schedule import Clue, Whole
from onceproof.stack.processes.owner import Owner


class Services(Protocol):
    """What a pipeline runs against, up and healthy."""

    def versions(self) -> Mapping[str, Any]:
        """Component -> version."""


@runtime_checkable
class WarmsUp(Protocol):
    """Services that make what all executions need when the first of them asks for it."""

    def warm_up(self) -> None:
        """Have it made before the first of many executions, which would take longer than the others."""


class Start(Protocol):
    def __call__(self, owner: Owner, folder: Path, timeline: Timeline) -> Services:
        """Start the services; their logs go to ``folder/logs``. Raises `ServiceFailed`."""


class PreparedPipeline(Protocol):
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
    fault_label: ClassVar[str]
    """What a listing adds to the names of its faults."""
    micro_batches: ClassVar[bool]
    """Whether its work is Spark's: batches fed in chunks, a checkpoint, points at which `qualify` can put faults."""
    drawn: ClassVar[bool]
    """Whether its timeline says who had which message when, which makes a picture."""
    runs_oracle_code: ClassVar[bool]
    """Whether an oracle that runs code can be asked about it."""
    repeats_exactly: ClassVar[bool]
    """Whether each execution of a schedule must leave as many anomalous rows, and all rows in the same order."""
    shares_services: ClassVar[bool]
    """Whether one execution after the other can run against the same services."""

    def services(self, scenario: Scenario) -> tuple[str, ...]:
        """What `fetch` would start, for `onceproof plan`."""

    def whole(self, scenario: Scenario) -> Whole:
        """Its schedule, of which a shrink takes parts away."""

    def hints(self, whole: Any, run_dir: Path, clues: Sequence[Sequence[Clue]]) -> Iterator[Any]:
        """Small schedules worth executing first, the smallest first. ``clues``: of each anomaly of the run ``run_dir`` that must
        stay, what its witnesses name."""

    def fetch(self, scenario: Scenario, *, survey: bool) -> Start:
        """Have what the services need on this machine, and say how to start them. Raises `EnvironmentProblem`."""

    def prepare(self, execution: Execution, services: Any, owner: Owner, writer: HistoryWriter) -> PreparedPipeline:
        """Make what is there before the pipeline starts: topics, tables, queues. ``services`` are of this kind's `Start`."""


pipelines: Registry[type[PipelineKind]] = Registry("kind of pipeline", "onceproof.kinds", "onceproof.pipelines")


def stack_services(spec: StackSpec) -> tuple[str, ...]:
    """What the stack of a Spark job consists of, which serves consumers too."""
    brokers = spec.kafka.brokers
    kafka = "Kafka, 1 node" if brokers == 1 else f"Kafka, {brokers} brokers and a controller"
    postgres = ["Postgres"] if spec.postgres is not None else []
    spark = [] if spec.spark is None else [_standalone(spec.spark)]
    return (kafka, *postgres, *spark, "Toxiproxy in front of every client listener")


def _standalone(spark: SparkStack) -> str:
    return f"Spark standalone: a master and {spark.workers} worker(s) with {spark.cores} core(s) each"


def kind_of(scenario: Scenario) -> PipelineKind:
    return pipelines.get(scenario.pipeline.kind)()
