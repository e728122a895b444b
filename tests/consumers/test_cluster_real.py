"""A consumer of a topic of three brokers whose leader dies: five executions of each scenario on one cluster, and one without its fault."""

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
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find
from onceproof.stack.processes.owner import Owner

from ..gate import ON_A_CLUSTER, assert_as_expected

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.full, pytest.mark.timeout(300)]

NAIVE, REMEDY = "unclean-election-of-input", "unclean-election-of-input-off"
TIMES = 5
NUMBERS = count(1)

Execute = Callable[[Scenario], Verdict]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "logs").mkdir()
    with Owner() as owner:
        yield services.fetched(load(find(NAIVE)))(owner, folder, Timeline(folder / "events.jsonl"))


@pytest.fixture
def execute(broker: Broker, tmp_path: Path) -> Execute:
    def once(scenario: Scenario) -> Verdict:
        number = next(NUMBERS)
        directory = RunDir.below(tmp_path / str(number))
        execute_once(scenario, find(scenario.name).parent, lambda *_: broker, directory, number=number)
        return judge(directory.path)

    return once


@pytest.mark.parametrize("name", [NAIVE, REMEDY])
def test_each_execution_has_the_expected_verdict_and_its_fault_hits(execute: Execute, name: str) -> None:
    for _ in range(TIMES):
        assert_as_expected(name, execute(load(find(name))))


def test_the_lost_message_is_the_one_that_the_consumer_had_not_read(execute: Execute) -> None:
    (finding,) = execute(load(find(NAIVE))).findings
    assert (finding.anomaly, finding.output, finding.total) == ("input-lost", "orders", 1)
    assert "acknowledged at an offset already taken" in finding.summary


def test_without_its_fault_the_naive_pipeline_holds(execute: Execute) -> None:
    verdict = execute(load(find(NAIVE)).model_copy(update={"chaos": []}))
    assert verdict.outcome is Outcome.HELD and not verdict.findings, verdict.reasons


def test_every_scenario_on_a_cluster_is_here() -> None:
    assert {NAIVE, REMEDY} == ON_A_CLUSTER
    one, other = load(find(NAIVE)), load(find(REMEDY))
    assert (one.stack, one.chaos, one.outputs, one.pipeline) == (
        other.stack,
        other.chaos,
        other.outputs,
        other.pipeline,
    )
