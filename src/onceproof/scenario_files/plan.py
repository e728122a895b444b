"""What a scenario would do, told without starting anything."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from onceproof.consumers.faults import consumer_faults
from onceproof.faults.contract import Placement, faults
from onceproof.judge.checker import checkers
from onceproof.oracle import oracles
from onceproof.scenario.model import OutputSpec, Scenario, SparkStack
from onceproof.scenario_files.checks.crosscheck import rows_of
from onceproof.stores.contract import store_of


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
    """None for a fault of consumers, whose ``point`` says it all."""
    point: str
    settings: dict[str, Any]
    """What its kind has beside target and position: ``leader_of``, ``for_s``, ..."""
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
    """What would be started, fed, broken and checked. ``guaranteed_batches`` are numbered from 0,
    and batch 0 holds no data (see `Scenario.guaranteed_batches`)."""

    scenario: str
    about: str
    base: str | None
    """The scenario that this one changes, as its file names it."""
    stack: tuple[str, ...]
    input: tuple[PlannedInput, ...]
    guaranteed_batches: int
    command: tuple[str, ...]
    prepare: tuple[str, ...]
    faults: tuple[PlannedFault, ...]
    outputs: tuple[PlannedOutput, ...]
    oracle: str
    checkers: tuple[str, ...]
    claim: dict[str, Any]
    expect: dict[str, Any]
    consumers: dict[str, Any] | None = None
    """The schedule's part of the pipeline; None for a Spark job."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan(scenario: Scenario) -> Plan:
    """The plan of a validated scenario. Starts nothing and reads no service."""
    oracle = oracles.get(scenario.oracle.kind)
    return Plan(
        scenario=scenario.name,
        about=scenario.about.strip(),
        base=scenario.base,
        stack=_stack(scenario),
        input=tuple(
            PlannedInput(spec.topic, spec.dataset, rows_of(spec, scenario.seed), spec.partitions, spec.chunks)
            for spec in scenario.input
        ),
        guaranteed_batches=scenario.guaranteed_batches(),
        command=tuple(scenario.pipeline.command),
        prepare=_prepare(scenario),
        faults=_faults(scenario),
        outputs=tuple(_output(scenario, name, output) for name, output in scenario.outputs.items()),
        oracle=f"{scenario.oracle.kind}: {oracle.about}",
        checkers=tuple(checkers.names()),
        claim=scenario.claim.model_dump(),
        expect=scenario.expect.model_dump(),
        consumers=None if (spec := scenario.pipeline.consumers) is None else spec.model_dump(mode="json"),
    )


def _stack(scenario: Scenario) -> tuple[str, ...]:
    consumers = scenario.pipeline.consumers
    if consumers is not None and consumers.broker == "amqp":
        installed = scenario.stack.amqp is not None and scenario.stack.amqp.broker == "rabbitmq"
        return (f"an AMQP 0-9-1 broker ({'RabbitMQ, as installed' if installed else 'Qpid Broker-J'})",)
    brokers = scenario.stack.kafka.brokers
    kafka = "Kafka, 1 node" if brokers == 1 else f"Kafka, {brokers} brokers and a controller"
    postgres = ["Postgres"] if scenario.stack.postgres is not None else []
    spark = [] if scenario.stack.spark is None else [_standalone(scenario.stack.spark)]
    return (kafka, *postgres, *spark, "Toxiproxy in front of every client listener")


def _standalone(spark: SparkStack) -> str:
    return f"Spark standalone: a master and {spark.workers} worker(s) with {spark.cores} core(s) each"


def _prepare(scenario: Scenario) -> tuple[str, ...]:
    prepare = scenario.pipeline.prepare
    return (
        *(f"topic {name}, {topic.partitions} partition(s)" for name, topic in prepare.topics.items()),
        *(f"static table {name}" for name in prepare.tables),
        *(["SQL in the pipeline's database"] if prepare.sql.strip() else []),
    )


def _faults(scenario: Scenario) -> tuple[PlannedFault, ...]:
    if scenario.pipeline.consumers is not None:
        return tuple(
            PlannedFault(
                fault=spec.fault,
                target=spec.target,
                query=None,
                batch=None,
                point=str(spec.at),
                settings={},
                placement=consumer_faults.get(spec.fault).placement(spec, scenario),
            )
            for spec in scenario.chaos
        )
    return tuple(
        PlannedFault(
            fault=spec.fault,
            target=spec.target,
            query=spec.at.query,
            batch=spec.at.batch,
            point=spec.at.point.value,
            settings=({"attempt": spec.at.attempt} if spec.at.attempt is not None else {})
            | spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"fault", "target", "at"}),
            placement=faults.get(spec.fault).placement(spec, scenario),
        )
        for spec in scenario.chaos
    )


def _output(scenario: Scenario, name: str, output: OutputSpec) -> PlannedOutput:
    where = f"{store_of(output).field} {output.place}"
    claim = scenario.claim_of(name).model_dump()
    return PlannedOutput(name, where, tuple(output.identity), tuple(output.ignore), claim)
