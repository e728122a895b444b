"""Starts the broker of a scenario with consumers, for a run or for a replay."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from onceproof.base.timeline import Timeline
from onceproof.consumers.brokers.amqp import AmqpBroker
from onceproof.consumers.brokers.contract import Broker
from onceproof.consumers.brokers.kafka import GroupQueues, KafkaBroker
from onceproof.consumers.brokers.share import ShareQueues
from onceproof.faults.contract import reads_frames
from onceproof.scenario.model import Scenario, consumers_of
from onceproof.stack.amqp import rabbitmq
from onceproof.stack.amqp.broker import EmbeddedAmqp
from onceproof.stack.amqp.routes import AmqpRoutes
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.fetch import components
from onceproof.stack.processes.owner import Owner


class StartBroker(Protocol):
    def __call__(self, owner: Owner, folder: Path, timeline: Timeline) -> Broker:
        """Start the broker, with its logs in ``folder/logs``. Raises `ServiceFailed`."""


def fetched(scenario: Scenario) -> StartBroker:
    """Fetch what the scenario's broker needs, and return how to start it. Raises `EnvironmentProblem`."""
    consumers = consumers_of(scenario)
    return _amqp(scenario) if consumers.broker == "amqp" else _kafka(scenario, consumers.broker)


def _amqp(scenario: Scenario) -> StartBroker:
    assert scenario.stack.amqp is not None, "validated: these consumers need it"
    begin: Callable[[Owner, Path], EmbeddedAmqp]
    if scenario.stack.amqp.broker == "rabbitmq":
        begin = partial(rabbitmq.EmbeddedRabbitMq.start_node, found=rabbitmq.find())
    else:
        begin = partial(EmbeddedAmqp.start, components=components.ensure_amqp())

    def start(owner: Owner, folder: Path, timeline: Timeline) -> Broker:
        broker = timeline.timed("amqp", partial(begin, owner, folder / "logs" / "amqp.log"))
        routes = AmqpRoutes(owner, broker.port, timeline.emit) if reads_frames(scenario.chaos) else None
        return AmqpBroker(broker, routes)

    return start


def _kafka(scenario: Scenario, kind: str) -> StartBroker:
    found = components.ensure(spark=False)
    frames = reads_frames(scenario.chaos)

    def start(owner: Owner, folder: Path, timeline: Timeline) -> Broker:
        stack = EmbeddedStack.start(scenario.stack, owner, folder, found, timeline, read_frames=frames)
        return KafkaBroker(stack, GroupQueues if kind == "kafka-group" else ShareQueues)

    return start
