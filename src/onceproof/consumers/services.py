"""The broker of a scenario with consumers, started as a run or a replay needs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from onceproof.consumers.amqp_broker import AmqpBroker
from onceproof.consumers.broker import Broker
from onceproof.consumers.faults import consumer_faults
from onceproof.consumers.kafka_broker import GroupQueues, KafkaBroker
from onceproof.consumers.share_broker import ShareQueues
from onceproof.events import Timeline
from onceproof.scenario.model import Scenario
from onceproof.stack import components
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.processes import Owner


class Start(Protocol):
    def __call__(self, owner: Owner, folder: Path, timeline: Timeline) -> Broker:
        """Start it; its logs go to ``folder/logs``. Raises `ServiceFailed`."""


def fetched(scenario: Scenario) -> Start:
    """Fetch what the scenario's broker needs, and say how to start it. Raises `EnvironmentProblem`."""
    consumers = scenario.pipeline.consumers
    assert consumers is not None, "a scenario of consumers"
    return _amqp() if consumers.broker == "amqp" else _kafka(scenario, consumers.broker)


def _amqp() -> Start:
    found = components.ensure_amqp()

    def start(owner: Owner, folder: Path, timeline: Timeline) -> Broker:
        return _timed(timeline, "amqp", lambda: AmqpBroker.start(owner, folder / "logs" / "amqp.log", found))

    return start


def _kafka(scenario: Scenario, kind: str) -> Start:
    found = components.ensure()
    frames = any(consumer_faults.get(fault.fault).reads_frames for fault in scenario.chaos)

    def start(owner: Owner, folder: Path, timeline: Timeline) -> Broker:
        stack = EmbeddedStack.start(scenario.stack, owner, folder, found, timeline, read_frames=frames)
        return KafkaBroker(stack, GroupQueues if kind == "kafka-group" else ShareQueues)

    return start


def _timed(timeline: Timeline, service: str, start: Callable[[], Broker]) -> Broker:
    timeline.emit("stack.starting", service=service)
    began = timeline.now()
    broker = start()
    timeline.emit("stack.ready", service=service, seconds=round(timeline.now() - began, 3))
    return broker
