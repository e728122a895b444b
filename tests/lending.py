"""Brokers that several executions of consumers use, one after the other, as those of a replay do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from onceproof.base import signals
from onceproof.base.timeline import Listener, Timeline
from onceproof.base.waiting import wait_until
from onceproof.consumers.brokers import services
from onceproof.consumers.brokers.amqp import AmqpBroker
from onceproof.consumers.brokers.contract import Broker
from onceproof.consumers.brokers.kafka import GroupQueues, KafkaBroker
from onceproof.consumers.brokers.share import ShareQueues
from onceproof.faults.contract import reads_frames
from onceproof.history.execution import Execution
from onceproof.history.run_directory import private_files
from onceproof.judge.ending import accounted_for
from onceproof.reports.html.files import reported
from onceproof.run import Result, judged, observe
from onceproof.scenario.model import Scenario, consumers_of
from onceproof.scenario.stack import StackSpec
from onceproof.scenario_files.load import LoadedScenario
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.processes.owner import Owner
from onceproof.stack.sharing.isolation import connections

_ANSWER_S = 10.0


class LentBrokers:
    """A broker for each stack that a scenario needs, from its first execution on. A context manager.

    Names of an execution's topics, queues, groups and schema begin with its number, those of the first with its stack excepted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._brokers: dict[StackSpec, tuple[Owner, Broker]] = {}
        self._served: Counter[StackSpec] = Counter()
        self._starts = count(1)

    def __enter__(self) -> LentBrokers:
        return self

    def __exit__(self, *_: object) -> None:
        for stack in [*self._brokers]:
            self._stop(stack)

    def run(self, loaded: LoadedScenario, runs_dir: Path, listeners: Sequence[Listener]) -> Result:
        """As `onceproof.run.run`, on one of these brokers."""
        scenario = loaded.scenario
        with signals.interruptible(), private_files():
            broker = self._serving(scenario)
            created = Execution.create(scenario, loaded.path, runs_dir, listeners)
            execution = replace(created, number=self._served[scenario.stack])
            self._served[scenario.stack] += 1
            try:
                with reported(execution), accounted_for(execution):
                    observe(execution, lambda *_: broker)
                    verdict = judged(execution)
                _check_that_nothing_can_reach_the_next(broker)
            except BaseException:
                self._stop(scenario.stack)  # the next execution gets a new one
                raise
        return Result(verdict, execution.directory.path)

    def _serving(self, scenario: Scenario) -> Broker:
        if scenario.stack not in self._brokers:
            folder, owner = self._folder / str(next(self._starts)), Owner()
            (folder / "logs").mkdir(parents=True)
            try:
                started = services.fetched(scenario)(owner, folder, Timeline(folder / "events.jsonl"))
            except BaseException:
                owner.close()
                raise
            self._brokers[scenario.stack] = (owner, started)
        _, broker = self._brokers[scenario.stack]
        if isinstance(broker, KafkaBroker):
            queues = GroupQueues if consumers_of(scenario).broker == "kafka-group" else ShareQueues
            return KafkaBroker(broker.stack, queues)
        return broker

    def _stop(self, stack: StackSpec) -> None:
        owner, _ = self._brokers.pop(stack)
        owner.close()


def can_share(scenario: Scenario) -> bool:
    """Whether executions of the scenario leave a broker as others need it: on one node, without a proxy that reads frames."""
    stack = scenario.stack
    if scenario.pipeline.consumers is None or reads_frames(scenario.chaos):
        return False
    if stack.amqp is not None:
        return stack.amqp.broker != "rabbitmq"
    return stack.kafka.brokers == 1 and (stack.postgres is None or stack.postgres.replica is None)


def _check_that_nothing_can_reach_the_next(broker: Broker) -> None:
    """No fault is in force or had a process of the services as its target, and no client of the execution is connected."""
    broker.check()
    if isinstance(broker, AmqpBroker):
        return
    assert isinstance(broker, KafkaBroker)
    stack: EmbeddedStack = broker.stack
    wait_until(
        "the connections of the last execution to end",
        lambda: not connections(stack),
        deadline_s=_ANSWER_S,
        explain=lambda: "; ".join(connections(stack)),
    )
    assert stack.disturbed() == [] and stack.toxiproxy.changed() == []
