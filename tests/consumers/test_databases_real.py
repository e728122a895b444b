"""Consumers that write to Postgres and Kafka, and their naive twins: five executions of each, and the naive ones without their fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from onceproof.base.timeline import Timeline
from onceproof.consumers.brokers import services
from onceproof.consumers.brokers.contract import Broker
from onceproof.explore.replay import execute_once
from onceproof.history.run_directory import RunDir
from onceproof.judge.findings import Outcome, Verdict
from onceproof.judge.verdict import judge
from onceproof.scenario.model import Scenario
from onceproof.scenario.stack import StackSpec
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find
from onceproof.stack.processes.owner import Owner

from ..gate import WITH_DATABASES, assert_as_expected

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.full, pytest.mark.timeout(300)]

#: A remedy -> its naive twins.
TWINS = {
    "dual-write-outbox": ["dual-write-fails-in-part"],
    "dual-write-one-log": ["dual-write-race"],
    "capture-position-with-effect": ["capture-position-first-loses", "capture-position-last-duplicates"],
    "snapshot-of-slot": ["snapshot-before-slot-loses", "slot-before-snapshot-duplicates"],
    "view-with-tombstones": ["view-without-tombstones"],
    "view-rebuilt-at-once": ["view-rebuilt-record-by-record"],
    "snapshot-covers-events": ["event-without-snapshot"],
    "timelines-at-once": ["timelines-in-two-steps"],
    "recreated-topic-by-id": ["recreated-topic-skips"],
    "added-partition-assigned": ["added-partition-unread"],
    "added-partition-fixed-count": ["added-partition-moves-keys"],
    "late-answer-idempotent": ["late-answer-duplicates"],
    "slow-network-idempotent": ["slow-network-duplicates"],
    "in-doubt-decided": ["in-doubt-rolled-back"],
    "prepared-looked-up": ["prepared-rolled-back"],
    "burst-waits": ["burst-drops"],
    "burst-read-in-parts": ["burst-fills-memory"],
    "input-sent-twice-deduplicated": ["input-sent-twice"],
    "offsets-compared": ["offsets-counted"],
    "progress-per-pipeline": ["progress-shared"],
    "replica-not-asked": ["replica-lags"],
    "failover-keeps-commit": ["failover-loses-commit"],
}
NAIVE = [name for twins in TWINS.values() for name in twins]
TIMES = 5
#: Names of an execution's topics, schema and group begin with its number.
NUMBERS = count(1)

Execute = Callable[[Scenario], Verdict]


class Brokers:
    """One broker at a time: the next one replaces it if a scenario needs another stack."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack: StackSpec | None = None
        self._broker: Broker | None = None
        self._owner = Owner()

    def serving(self, scenario: Scenario) -> Broker:
        if self._broker is None or self._stack != scenario.stack:
            self.close()
            self._owner, folder = Owner(), self._folder / str(next(NUMBERS))
            (folder / "logs").mkdir(parents=True)
            self._broker = services.fetched(scenario)(self._owner, folder, Timeline(folder / "events.jsonl"))
            self._stack = scenario.stack
        return self._broker

    def close(self) -> None:
        self._owner.close()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    running = Brokers(tmp_path_factory.mktemp("databases"))
    yield running
    running.close()


@pytest.fixture
def execute(brokers: Brokers, tmp_path: Path) -> Execute:
    def once(scenario: Scenario) -> Verdict:
        number = next(NUMBERS)
        broker = brokers.serving(scenario)
        directory = RunDir.below(tmp_path / str(number))
        execute_once(scenario, find(scenario.name).parent, lambda *_: broker, directory, number=number)
        return judge(directory.path)

    return once


#: In an order in which those with equal stacks follow each other.
BY_STACK = sorted([*TWINS, *NAIVE], key=lambda name: load(find(name)).stack.model_dump_json())


@pytest.mark.parametrize("name", BY_STACK)
def test_each_execution_has_the_expected_verdict_and_its_fault_hits(execute: Execute, name: str) -> None:
    for _ in range(TIMES):
        assert_as_expected(name, execute(load(find(name))))


@pytest.mark.parametrize("name", [name for name in BY_STACK if name in NAIVE])
def test_without_its_fault_the_naive_pipeline_holds(execute: Execute, name: str) -> None:
    verdict = execute(load(find(name)).model_copy(update={"chaos": []}))
    assert verdict.outcome is Outcome.HELD and not verdict.findings, verdict.reasons


def test_every_scenario_with_databases_is_here() -> None:
    assert {*TWINS, *NAIVE} == WITH_DATABASES


@pytest.mark.parametrize(("remedy", "naive"), [(remedy, name) for remedy, twins in TWINS.items() for name in twins])
def test_twins_differ_only_in_an_option_of_the_command_or_in_a_key_of_the_table(remedy: str, naive: str) -> None:
    one, other = load(find(naive)), load(find(remedy))
    assert (one.stack, one.input, one.chaos, one.outputs) == (other.stack, other.input, other.chaos, other.outputs)
    assert (one.oracle, one.claim, one.pipeline.consumers) == (other.oracle, other.claim, other.pipeline.consumers)
    assert one.pipeline.command[:2] == other.pipeline.command[:2]
