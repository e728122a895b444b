"""A broker that several executions of consumers use, one after the other, as those of a replay do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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


class LentBroker:
    """One broker at a time: the next one replaces it if a scenario needs another stack. A context manager.

    Names of an execution's topics, queues, groups and schema begin with its number, those of the first on a broker excepted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._owner = Owner()
        self._stack: StackSpec | None = None
        self._broker: Broker | None = None
        self._starts = 0
        self._served = 0

    def __enter__(self) -> LentBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self._owner.close()

    def run(self, loaded: LoadedScenario, runs_dir: Path, listeners: Sequence[Listener]) -> Result:
        """As `onceproof.run.run`, on this broker."""
        scenario = loaded.scenario
        with signals.interruptible(), private_files():
            broker = self._serving(scenario)
            created = Execution.create(scenario, loaded.path, runs_dir, listeners)
            execution = replace(created, number=self._served)
            self._served += 1
            with reported(execution), accounted_for(execution):
                observe(execution, lambda *_: broker)
                verdict = judged(execution)
            _check_that_nothing_can_reach_the_next(broker)
        return Result(verdict, execution.directory.path)

    def _serving(self, scenario: Scenario) -> Broker:
        if self._broker is None or self._stack != scenario.stack:
            self._owner.close()
            self._starts += 1
            self._owner, folder = Owner(), self._folder / str(self._starts)
            (folder / "logs").mkdir(parents=True)
            self._broker = services.fetched(scenario)(self._owner, folder, Timeline(folder / "events.jsonl"))
            self._stack, self._served = scenario.stack, 0
        if isinstance(self._broker, KafkaBroker):
            queues = GroupQueues if consumers_of(scenario).broker == "kafka-group" else ShareQueues
            return KafkaBroker(self._broker.stack, queues)
        return self._broker


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
