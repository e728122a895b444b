"""What a store is: one kind of output system. Each folder in this package implements `Store` and registers it.

A history has two forms of output (`onceproof.history.schema`). A store writes *records*, which have a partition and an
offset, or *rows*, which commits add and remove. The judge knows only these forms, not the stores.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from onceproof.base.registry import Registry
from onceproof.base.timeline import Timeline
from onceproof.history.run_record import OutputRecord
from onceproof.history.writer import HistoryWriter
from onceproof.scenario import kinds
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.problem import Complaint
from onceproof.stack.api import Stack

if TYPE_CHECKING:
    from onceproof.stack.processes.owner import Owner

State = Mapping[str, str]
"""Name of an output (`Store.name`) -> what it holds, as text that changes whenever the output is written."""


@dataclass(frozen=True)
class Words:
    """The words that findings use for a store."""

    item: str
    """``row``, ``record``, ``delivery``."""
    whole: str
    """``table``, ``topic``, ``folder``, ``receiver``."""
    commit: str = ""
    """The word before a commit's number: ``xid``, ``version``. Empty for records."""
    written: str = ""
    """The same in a sentence: ``written by transaction``. With an ``s`` before several numbers."""
    system: str = ""
    """The system's name in explanations that hold for one system only (`onceproof.judge.checker.Explanation`): ``Kafka``."""


@dataclass
class ReadBack:
    """Reads back the outputs and inputs of a run, after everything is healed and the job has stopped."""

    scenario: Scenario
    stack: Stack
    writer: HistoryWriter
    timeline: Timeline
    commits: Iterator[int] = field(default_factory=itertools.count)
    """Numbers for the rows of table ``commits``, which holds the commits of all stores."""
    ends: dict[str, dict[int, int]] = field(default_factory=dict)
    """Input topic -> partition -> end offset."""

    def outputs(self, store: Store) -> dict[str, OutputSpec]:
        return {name: spec for name, spec in self.scenario.outputs.items() if store_of(spec) is store}


class Store(Protocol):
    """One kind of output system. Stateless: each method gets what it needs."""

    about: str
    """One line for listings."""
    field: str
    """The field of an output that gives its place: ``topic``, ``table``. Different for each store."""
    words: Words

    @property
    def Spec(self) -> type[OutputSpec]:  # noqa: N802  # a property, because each store has a narrower type
        """The model of an output in this store, as a scenario describes it."""

    def problems(self, scenario: Scenario, spec: OutputSpec) -> Iterator[Complaint]:
        """Problems between the fields of an output, each of which is valid by itself. Places are relative to the output."""

    def address(self, spec: OutputSpec, stack: Stack) -> str:
        """The value of the template ``{output.NAME}``."""

    def name(self, spec: OutputSpec) -> str:
        """The output's key in `State`."""

    def state(self, stack: Stack, outputs: Collection[OutputSpec] | None) -> State:
        """What the store holds now, read past every proxy.

        ``outputs``: these, with uncommitted content; None: everything, as a reader sees it.
        """

    def read_back(self, run: ReadBack) -> dict[str, OutputRecord]:
        """Write the store's outputs to the history. Returns the records for ``run.json``. Raises `HistoryError`."""


@runtime_checkable
class NeedsJars(Protocol):
    """A store to which a Spark job can write only with additional jars."""

    def jars(self) -> tuple[Path, ...]:
        """The jars for the job's class path; missing ones are fetched. Raises `EnvironmentProblem`."""


@runtime_checkable
class CommitsLikeCheckpoints(Protocol):
    """A store to which Spark's own sink commits by a log entry like those of checkpoints: faults can be placed there."""

    log: str
    """The folder of that log, below the output's folder."""


@runtime_checkable
class SnapshotOnly(Protocol):
    """A store whose outputs have rows but no commits: only what it holds after the run can be read."""

    no_commits: str
    """Why, as the reason of each checker that needs commits."""


@runtime_checkable
class HasServer(Protocol):
    """A store whose outputs are what the job sends to a server. The harness runs it as long as the services."""

    def serve(self, outputs: Collection[OutputSpec], stack: Stack, owner: Owner, logs: Path) -> None:
        """Start the server for these outputs, and return once it accepts connections. Its log goes to the folder ``logs``.

        Raises `EnvironmentProblem`, also as `ServiceFailed`, and `WaitTimeout`.
        """


@runtime_checkable
class OutsideStack(Protocol):
    """A store on a service that is not part of any stack: the user runs it."""

    def preparation(self, spec: OutputSpec) -> str:
        """Where the output is, and what a run does there before the job starts, for `onceproof plan`."""

    def make_ready(self, outputs: Mapping[str, OutputSpec]) -> None:
        """Check these outputs, and empty those that ask for it. Called before the run starts anything.

        Raises `UsageError` and `EnvironmentProblem`, for example if the service does not answer.
        """


@runtime_checkable
class StoresBits(Protocol):
    """A store some of whose databases have no type for truth values, and use 0 and 1."""

    def is_bit(self, column_type: str) -> bool:
        """Whether a column of this type, as in ``run.json``, holds a truth value as 0 or 1 where one is expected."""


stores: Registry[Store] = kinds.stores.requires(Store, distinct="field", Spec=OutputSpec)


def store_of(spec: OutputSpec) -> Store:
    """The store of an output. A loaded scenario names exactly one for each."""
    store: Store
    (store,) = kinds.stores_of(spec)
    return store


def systems() -> frozenset[str]:
    """The names with which advice for one output system begins: ``Kafka``, ``Postgres``."""
    return frozenset(store.words.system for _, store in stores.items()) - {""}


def jars(scenario: Scenario) -> tuple[Path, ...]:
    """The jars that the job's class path needs for the stores of its outputs; missing ones are fetched."""
    used = {id(store): store for store in map(store_of, scenario.outputs.values())}
    return tuple(jar for store in used.values() if isinstance(store, NeedsJars) for jar in store.jars())


def make_ready(scenario: Scenario) -> None:
    """Check the outputs outside the stack. Raises `UsageError` and `EnvironmentProblem`."""
    for _, store in stores.items():
        outputs = {name: spec for name, spec in scenario.outputs.items() if store_of(spec) is store}
        if outputs and isinstance(store, OutsideStack):
            store.make_ready(outputs)


def serve(scenario: Scenario, stack: Stack, owner: Owner, logs: Path) -> None:
    """Start the servers that outputs need. ``owner`` ends them. Raises `EnvironmentProblem` and `WaitTimeout`."""
    for _, store in stores.items():
        outputs = [spec for spec in scenario.outputs.values() if store_of(spec) is store]
        if outputs and isinstance(store, HasServer):
            store.serve(outputs, stack, owner, logs)


def collect(run: ReadBack) -> dict[str, OutputRecord | None]:
    """Write tables ``input``, ``output``, ``partitions``, ``commits``, ``snapshot``. Returns the outputs for ``run.json``."""
    found: dict[str, OutputRecord | None] = {}
    for _, store in stores.items():
        found |= store.read_back(run)
    return found
