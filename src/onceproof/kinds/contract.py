"""What a kind of pipeline is: how it is prepared, started and driven under faults, and how its history is collected.

`onceproof.run` and `onceproof.explore` treat every kind alike; where kinds differ, the kind answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from onceproof.base.registry import Registry
from onceproof.base.timeline import Timeline
from onceproof.history.execution import Execution
from onceproof.history.writer import HistoryWriter
from onceproof.scenario.model import Scenario
from onceproof.scenario.schedule import ShrinkHint, Whole
from onceproof.scenario.stack import SparkStack, StackSpec
from onceproof.stack.external.profile import StackProfile
from onceproof.stack.processes.owner import Owner

if TYPE_CHECKING:  # it imports every service's client, which takes a second, and files are also read without services
    from onceproof.stack.sharing.shared import SharedStack


class Services(Protocol):
    """The running and healthy services of a pipeline."""

    def versions(self) -> Mapping[str, Any]:
        """Component -> version."""


@runtime_checkable
class WarmsUp(Protocol):
    """Services that create something when an execution first needs it, which takes time."""

    def warm_up(self) -> None:
        """Create these things before the first of many executions, which would otherwise take longer than the others."""


class Start(Protocol):
    def __call__(self, owner: Owner, folder: Path, timeline: Timeline) -> Services:
        """Start the services; their logs go to ``folder/logs``. Raises `ServiceFailed`."""


class PreparedPipeline(Protocol):
    """The pipeline of one execution. Its methods are called in this order."""

    def start(self) -> AbstractContextManager[object]:
        """Start the pipeline, with its instruments in place before its first instruction.

        At the end of the block nothing of it runs. If the run failed, its faults are healed as far as that is quick.
        """

    def drive(self) -> None:
        """Feed the pipeline under faults until its input is drained, or until waiting is pointless. Judges nothing."""

    def heal(self) -> None:
        """Undo every fault that is still in force."""

    def collect(self) -> None:
        """Write what was observed, once the pipeline has stopped: the tables of the history, and the facts of ``run.json``."""


class PipelineKind(Protocol):
    fault_label: ClassVar[str]
    """What a listing appends to the names of its faults."""
    micro_batches: ClassVar[bool]
    """Whether it runs Spark's micro-batches: fed in chunks, with a checkpoint, and points where `qualify` can place faults."""
    has_picture: ClassVar[bool]
    """Whether its timeline records which consumer held which message when, so that a picture can be drawn."""
    runs_oracle_code: ClassVar[bool]
    """Whether oracles that run code can be used with it."""
    repeats_exactly: ClassVar[bool]
    """Whether each execution of a schedule must leave equally many anomalous rows, and all rows in the same order."""
    shares_services: ClassVar[bool]
    """Whether an execution itself removes what it leaves on its services, so that others can use them after it.

    Those of other kinds are lent and cleaned by `onceproof.stack.sharing.shared`."""

    def services(self, scenario: Scenario) -> tuple[str, ...]:
        """What `fetch` would start, for `onceproof plan`."""

    def whole(self, scenario: Scenario) -> Whole:
        """Its schedule, from which a shrink removes parts."""

    def hinted_schedules(self, whole: Any, run_dir: Path, hints: Sequence[Sequence[ShrinkHint]]) -> Iterator[Any]:
        """Small schedules to execute first, the smallest first.

        ``hints``: for each anomaly of the run ``run_dir`` that must stay, what its witnesses name.
        """

    def fetch(
        self,
        scenario: Scenario,
        *,
        survey: bool,
        profile: StackProfile | None = None,
        shared: SharedStack | None = None,
    ) -> Start:
        """Fetch what the services need on this machine, and return how to start them. Raises `EnvironmentProblem`.

        ``shared`` lends a stack that runs already, to a kind and a stack that can share one.

        With ``profile`` the services are those of an external stack, and only the proxies in front of them are started.
        """

    def prepare(self, execution: Execution, services: Any, owner: Owner, writer: HistoryWriter) -> PreparedPipeline:
        """Create what has to exist before the pipeline starts: topics, tables, queues.

        ``services`` come from this kind's `Start`.
        """


pipelines: Registry[type[PipelineKind]] = Registry(
    "kind of pipeline", "onceproof.kinds", "onceproof.pipelines", PipelineKind
)


_A_REPLICA = {"asynchronous": "an asynchronous replica", "synchronous": "a synchronous replica"}


def stack_services(spec: StackSpec) -> tuple[str, ...]:
    """The services of a Spark job's stack, which serves consumers too."""
    brokers = spec.kafka.brokers
    kafka = "Kafka, 1 node" if brokers == 1 else f"Kafka, {brokers} brokers and a controller"
    replica = spec.postgres.replica if spec.postgres is not None else None
    of_postgres = "Postgres" if replica is None else f"Postgres and {_A_REPLICA[replica]}"
    postgres = [of_postgres] if spec.postgres is not None else []
    spark = [] if spec.spark is None else [spark_service(spec.spark)]
    store = [] if spec.object_store is None else ["an S3-compatible object store for checkpoints"]
    return (kafka, *postgres, *spark, *store, "Toxiproxy in front of every client listener")


def spark_service(spark: SparkStack) -> str:
    """The Spark cluster of a stack, for `onceproof plan`."""
    if spark.external:
        return f"Spark {spark.master}, an external cluster; the driver and the proxies listen on {spark.bind}"
    return f"Spark standalone: a master and {spark.workers} worker(s) with {spark.cores} core(s) each"


def has_picture(kind: str) -> bool:
    """Whether runs of the kind have a picture; False also for a kind that a stored run names and this version does not know."""
    return kind in pipelines.names() and pipelines.get(kind).has_picture


def kind_of(scenario: Scenario) -> PipelineKind:
    return pipelines.get(scenario.pipeline.kind)()
