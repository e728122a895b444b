"""The real embedded stack: three brokers, a controller and Postgres, all with Toxiproxy in front."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from onceproof.base.errors import EnvironmentProblem, ServiceFailed, WaitTimeout
from onceproof.base.timeline import Event, Timeline
from onceproof.faults.evidence import leadership
from onceproof.scenario.stack import KafkaStack, PostgresStack, StackSpec
from onceproof.stack import selftest
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.fetch import components
from onceproof.stack.kafka.clients import producer_config
from onceproof.stack.kafka.cluster import EmbeddedKafka
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease

pytestmark = [pytest.mark.real, pytest.mark.services]


@pytest.fixture(scope="module")
def owner() -> Iterator[Owner]:
    with Owner() as owner:
        yield owner


@pytest.fixture(scope="module")
def stack(owner: Owner, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedStack:
    return start(3, owner, tmp_path_factory.mktemp("run"))


def start(brokers: int, owner: Owner, folder: Path, events: list[Event] | None = None) -> EmbeddedStack:
    timeline = Timeline(folder / "events.jsonl")
    if events is not None:
        timeline.listen(events.append)
    spec = StackSpec(kafka=KafkaStack(brokers=3 if brokers == 3 else 1), postgres=PostgresStack())
    return EmbeddedStack.start(spec, owner, folder, components.ensure(), timeline)


def send(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer(producer_config(bootstrap))
    errors = []
    for number in range(count):
        producer.produce(topic, str(number), on_delivery=lambda error, _message: errors.append(error))
    producer.flush(20)
    assert errors == [None] * count


def test_a_direct_connection_to_each_kind_of_listener_is_reported(stack: EmbeddedStack) -> None:
    stack.kafka.create_topic("bypassed", 3)
    send(stack.kafka.client_bootstrap, "bypassed", 100)  # so that replication runs too
    assert stack.check_bypass([]) == []
    for name, proxy in stack.kafka.proxies.items():
        host, _, port = proxy.upstream.rpartition(":")
        with socket.create_connection((host, int(port))):
            (sentence,) = stack.check_bypass([])
        assert port in sentence, name
    assert stack.check_bypass([]) == []


def test_no_broker_bypasses_its_proxy_after_a_cut_of_its_controller_link(stack: EmbeddedStack) -> None:
    """Since KIP-853 (seen with 4.3.1) brokers fetch from the address that the controller advertises after a cut."""
    for broker in stack.kafka.brokers:
        stack.kafka.controller_proxy(broker).cut()
    for broker in stack.kafka.brokers:
        stack.kafka.controller_proxy(broker).heal()
    # Once a new topic is in every broker's metadata, all have fetched from the controller again.
    stack.kafka.create_topic("after-the-cut", 3)
    assert stack.check_bypass([]) == []


def test_an_isolated_leader_is_replaced(stack: EmbeddedStack) -> None:
    kafka = stack.kafka
    kafka.create_topic("isolated", 1)
    before = kafka.leader("isolated", 0)
    kafka.replication_proxy(before.broker).cut()
    kafka.controller_proxy(before.broker).cut()
    try:
        leadership.wait_for_new_leader(kafka, "isolated/0", before)
    finally:
        kafka.replication_proxy(before.broker).heal()
        kafka.controller_proxy(before.broker).heal()
    stack.check_health()
    send(kafka.client_bootstrap, "isolated", 10)


def test_a_killed_broker_comes_back_into_every_isr(stack: EmbeddedStack) -> None:
    kafka = stack.kafka
    kafka.create_topic("killed", 1)
    before = kafka.leader("killed", 0)
    kafka.kill_broker(before.broker)
    assert not kafka.is_running(before.broker)
    stack.check_health()  # raises nothing, because a fault killed the broker
    leadership.wait_for_new_leader(kafka, "killed/0", before)
    kafka.restart_broker(before.broker)
    assert kafka.is_running(before.broker)
    partition = kafka.admin().list_topics("killed", timeout=5).topics["killed"].partitions[0]
    assert sorted(partition.isrs) == [1, 2, 3]
    send(kafka.client_bootstrap, "killed", 10)
    assert stack.check_bypass([]) == []


def test_a_topic_that_kafka_refuses_is_named_in_the_error(stack: EmbeddedStack) -> None:
    stack.kafka.create_topic("taken", 1)
    with pytest.raises(EnvironmentProblem, match=r"'taken'.*exists"):
        stack.kafka.create_topic("taken", 1)
    with pytest.raises(EnvironmentProblem, match=r"no-such-setting"):
        stack.kafka.create_topic("odd", 1, {"no-such-setting": "1"})


def test_a_broker_that_advertises_another_address_than_its_proxy_is_reported(
    stack: EmbeddedStack, owner: Owner
) -> None:
    first = stack.kafka.brokers[0]
    advertised = stack.kafka.client_proxy(first)
    another = stack.toxiproxy.create("another", lease(owner, 1)[0], int(advertised.upstream.rpartition(":")[2]))
    mistaken = EmbeddedKafka(stack.kafka.nodes, {**stack.kafka.proxies, f"client-{first}": another})
    with pytest.raises(EnvironmentProblem, match=advertised.listen):
        selftest.check_advertised(mistaken)


def test_one_node_works_through_its_proxy_and_can_be_restarted(tmp_path: Path) -> None:
    events: list[Event] = []
    with Owner() as owner:
        stack = start(1, owner, tmp_path, events)
        stack.kafka.create_topic("one", 2)
        send(stack.kafka.client_bootstrap, "one", 10)
        with pytest.raises(EnvironmentProblem, match="no proxy 'replication-1'"):
            stack.kafka.replication_proxy(1)
        stack.kafka.kill_broker(1)
        stack.kafka.restart_broker(1)
        send(stack.kafka.client_bootstrap, "one", 10)
        assert stack.versions()["kafka"] == "4.3.1"
        # Killed without `kill_broker`: a failure, reported with the service's log.
        stack.kafka.nodes[1].service.kill()
        with pytest.raises(ServiceFailed, match=r"kafka-1 ended with exit code -9(?s:.*)last log lines"):
            stack.check_health()
    ready = [event.data["service"] for event in events if event.kind == "stack.ready"]
    assert sorted(ready) == ["kafka", "postgres", "self-test", "toxiproxy"]
    assert all(event.data["seconds"] >= 0 for event in events if event.kind == "stack.ready")


def test_waiting_for_a_leader_that_does_not_exist_ends_at_the_deadline(
    stack: EmbeddedStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceproof.stack.kafka.topics.START_DEADLINE_S", 1.0)
    with pytest.raises(WaitTimeout, match="a leader of no-such-topic-0"):
        stack.kafka.leader("no-such-topic", 0)
