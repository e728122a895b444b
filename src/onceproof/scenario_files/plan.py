"""What a scenario would do, found without starting anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from onceproof.data import rows_of
from onceproof.faults.contract import Placement, fault_of, needs_control
from onceproof.judge.checker import checkers
from onceproof.kinds.contract import kind_of
from onceproof.oracle import oracles
from onceproof.scenario.base import AnyFaultSpec
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.stack.external.names import RunNames, identity
from onceproof.stack.external.profile import StackProfile
from onceproof.stores.contract import OutsideStack, store_of
from onceproof.stores.postgres.store import tables_of


@dataclass(frozen=True)
class PlannedInput:
    topic: str
    dataset: str
    records: int
    partitions: int
    chunks: int


@dataclass(frozen=True)
class PlannedFault:
    fault: str
    target: str
    query: str | None
    batch: int | None
    """None for a fault of consumers: its ``point`` is the whole position."""
    point: str
    settings: dict[str, Any]
    """The settings of its kind besides target and position: ``leader_of``, ``for_s``, ..."""
    placement: Placement


@dataclass(frozen=True)
class PlannedOutput:
    name: str
    where: str
    identity: tuple[str, ...]
    ignore: tuple[str, ...]
    claim: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What would be started, fed, broken and checked."""

    scenario: str
    about: str
    base: str | None
    """The scenario that this one changes, as the file names it."""
    stack: tuple[str, ...]
    input: tuple[PlannedInput, ...]
    guaranteed_batches: int
    """Numbered from 0, and batch 0 holds no data (see `Scenario.guaranteed_batches`)."""
    command: tuple[str, ...]
    prepare: tuple[str, ...]
    faults: tuple[PlannedFault, ...]
    outputs: tuple[PlannedOutput, ...]
    oracle: str
    checkers: tuple[str, ...]
    claim: dict[str, Any]
    expect: dict[str, Any]
    consumers: dict[str, Any] | None = None
    """The ``consumers`` of the pipeline; None for a Spark job."""
    external: tuple[str, ...] = ()
    """Every object of an external stack that a run would create, read or delete, as sentences."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan(scenario: Scenario, profile: StackProfile | None = None) -> Plan:
    """The plan of a validated scenario, on the stack of ``profile`` if there is one. Starts nothing and reads no service."""
    oracle = oracles.get(scenario.oracle.kind)
    return Plan(
        scenario=scenario.name,
        about=scenario.about.strip(),
        base=scenario.base,
        stack=kind_of(scenario).services(scenario) if profile is None else _services(scenario, profile),
        input=tuple(
            PlannedInput(spec.topic, spec.dataset, rows_of(spec, scenario.seed), spec.partitions, spec.chunks)
            for spec in scenario.input
        ),
        guaranteed_batches=scenario.guaranteed_batches(),
        command=tuple(scenario.pipeline.command),
        prepare=_prepare(scenario),
        faults=_faults(scenario, profile),
        outputs=tuple(_output(scenario, name, output) for name, output in scenario.outputs.items()),
        oracle=f"{scenario.oracle.kind}: {oracle.about}",
        checkers=tuple(checkers.names()),
        claim=scenario.claim.model_dump(),
        expect=scenario.expect.model_dump(),
        consumers=scenario.pipeline.model_dump(mode="json")["consumers"],
        external=() if profile is None else tuple(_objects(scenario)),
    )


def _services(scenario: Scenario, profile: StackProfile) -> tuple[str, ...]:
    """The services that a run on an external stack uses, and those that it starts itself."""
    postgres = profile.postgres
    of_profile = [f"Kafka {profile.kafka.bootstrap} ({profile.kafka.security})"]
    if scenario.stack.postgres is not None and postgres is not None:
        parts = postgres.parts()
        of_profile.append(f"Postgres {parts['host']}:{parts.get('port', '5432')}/{parts['dbname']}")
    named = f"{profile.place}: {' and '.join(of_profile)}"
    return (named, "Toxiproxy and the protocol proxy in front of every listener")


def _objects(scenario: Scenario) -> Iterator[str]:
    names = RunNames(identity(), "RUN")
    for spec in scenario.input:
        yield f"topic {names.topic(spec.topic)}: created, fed, read, deleted"
    for name in scenario.pipeline.prepare.topics:
        yield f"topic {names.topic(name)}: created, read, deleted"
    if scenario.stack.postgres is not None:
        of_job = ", ".join(sorted(set(tables_of(scenario).values()))) or "no output"
        yield f"schema {names.identifier}: created, with the job's tables ({of_job}); read; dropped"
        yield f"publication {names.identifier}: created, dropped"
        yield f"replication slot {names.identifier}: created, read, dropped; another temporary one to check the right"
    yield "what the job itself names, such as transactional ids and consumer groups: not prefixed, not removed"


def _prepare(scenario: Scenario) -> tuple[str, ...]:
    prepare = scenario.pipeline.prepare
    return (
        *(f"topic {name} (partitions: {topic.partitions})" for name, topic in prepare.topics.items()),
        *(f"static table {name}" for name in prepare.tables),
        *(["SQL in the pipeline's database"] if prepare.sql.strip() else []),
    )


def _faults(scenario: Scenario, profile: StackProfile | None) -> tuple[PlannedFault, ...]:
    return tuple(
        PlannedFault(
            fault=spec.fault,
            target=spec.target,
            query=spec.at.of_query(),
            **spec.at.described(),
            settings=spec.at.settings()
            | spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"fault", "target", "at"}),
            placement=_placement(spec, scenario, profile),
        )
        for spec in scenario.chaos
    )


def _placement(spec: AnyFaultSpec, scenario: Scenario, profile: StackProfile | None) -> Placement:
    what = needs_control(spec) if profile is not None else None
    if profile is not None and what is not None and what not in profile.controlled:
        why = f"it needs control of {what}, which stack {profile.name} does not give"
        return Placement("n/a", "nothing", why, "none: `onceproof run --stack` refuses this fault")
    return fault_of(spec).placement(spec, scenario)


def _output(scenario: Scenario, name: str, output: OutputSpec) -> PlannedOutput:
    store = store_of(output)
    where = f"{store.field} {output.place}"
    if isinstance(store, OutsideStack):
        where = f"{where}, {store.preparation(output)}"
    claim = scenario.claim_of(name).model_dump()
    return PlannedOutput(name, where, tuple(output.identity), tuple(output.ignore), claim)
