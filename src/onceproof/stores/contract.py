"""What a store is: one kind of output system. Each is one folder here that implements `Store` and registers it.

A history has two forms of output (`onceproof.history.schema`). A store gives *records*, which have a partition and an offset, or
*rows*, which commits add and take away: the judge knows no store by its name.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from onceproof.base.registry import Registry
from onceproof.base.timeline import Timeline
from onceproof.history.run_record import OutputRecord
from onceproof.history.writer import HistoryWriter
from onceproof.scenario import kinds
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.problem import Complaint
from onceproof.stack.api import Stack
from onceproof.stack.fetch.components import ensure_jars

State = Mapping[str, str]
"""Name of an output (`Store.name`) -> what it holds, in words that differ if it was written meanwhile."""


@dataclass(frozen=True)
class Words:
    """How findings speak of a store."""

    item: str
    """``row`` or ``record``."""
    whole: str
    """``table``, ``topic``, ``folder``."""
    commit: str = ""
    """What stands before a commit's number: ``xid``, ``version``. Empty where there are records."""
    written: str = ""
    """The same in a sentence, before one number or, with an ``s``, before several: ``written by transaction``."""
    system: str = ""
    """Its name where an explanation is about outputs of one system only (`onceproof.judge.checker.STORES`): ``Kafka``."""


@dataclass
class ReadBack:
    """One reading of a run's outputs, and of its inputs, once everything is healed and the job has stopped."""

    scenario: Scenario
    stack: Stack
    writer: HistoryWriter
    timeline: Timeline
    commits: Iterator[int] = field(default_factory=itertools.count)
    """Numbers for the table ``commits``, which has those of all stores."""
    ends: dict[str, dict[int, int]] = field(default_factory=dict)
    """Input topic -> partition -> where it ends."""

    def outputs(self, store: Store) -> dict[str, OutputSpec]:
        return {name: spec for name, spec in self.scenario.outputs.items() if store_of(spec) is store}


class Store(Protocol):
    """One kind of output system. Stateless: what it needs of a run it is given."""

    about: str
    """One line for listings."""
    field: str
    """The field of an output that says where it is: ``topic``, ``table``. No two stores have the same."""
    words: Words

    @property
    def Spec(self) -> type[OutputSpec]:  # noqa: N802  # as of faults and oracles; a property, for each has a narrower type
        """What a scenario says of an output in it."""

    def problems(self, scenario: Scenario, spec: OutputSpec) -> Iterator[Complaint]:
        """What can be wrong although each value is fine alone; places are relative to the output."""

    def address(self, spec: OutputSpec, stack: Stack) -> str:
        """What a job is told for ``{output.NAME}``."""

    def name(self, spec: OutputSpec) -> str:
        """As `State` has it."""

    def state(self, stack: Stack, outputs: Collection[OutputSpec] | None) -> State:
        """What it holds now, asked past every proxy: these outputs with what is not committed, or all as a reader sees it."""

    def read_back(self, run: ReadBack) -> dict[str, OutputRecord]:
        """Write its outputs to the history; for ``run.json``, output -> its columns and counts. Raises `HistoryError`."""


@runtime_checkable
class NeedsJars(Protocol):
    """A store that a Spark job cannot write to with Spark's own jars."""

    component: str
    """What is fetched and put on the job's class path (`onceproof.stack.fetch.components`)."""


@runtime_checkable
class CommitsLikeCheckpoints(Protocol):
    """A store that Spark's own sink commits to by an entry in a log, written as checkpoints are: faults can be placed there."""

    log: str
    """The folder of that log, below the output's."""


stores: Registry[Store] = kinds.stores


def store_of(spec: OutputSpec) -> Store:
    """The one store that the output names: a scenario with another output is refused."""
    store: Store
    (store,) = kinds.stores_of(spec)
    return store


def jars(scenario: Scenario) -> tuple[Path, ...]:
    """What the job's class path must have for the stores of its outputs; fetched if it is not there."""
    used = {id(store): store for store in map(store_of, scenario.outputs.values())}
    return tuple(jar for store in used.values() if isinstance(store, NeedsJars) for jar in ensure_jars(store.component))


def collect(run: ReadBack) -> dict[str, OutputRecord | None]:
    """Write the tables ``input``, ``output``, ``partitions``, ``commits`` and ``snapshot``; what ``run.json`` keeps of each output."""
    found: dict[str, OutputRecord | None] = {}
    for _, store in stores.items():
        found |= store.read_back(run)
    return found
