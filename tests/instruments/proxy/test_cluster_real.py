"""The proxy in front of a cluster that is not ours: SASL_SSL, three brokers, ACLs; librdkafka finds its way only through it."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.waiting import wait_until
from onceproof.instruments.proxy.authority import RunAuthority
from onceproof.instruments.proxy.cluster import ClusterProxy
from onceproof.instruments.proxy.loop import ProxyLoop
from onceproof.instruments.proxy.rules import Board, Condition, Rule
from onceproof.instruments.proxy.tls import UpstreamTls
from onceproof.stack.fetch import components
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease

from ...foreign_cluster import JOB, PREFIX, ForeignKafka, Mechanism

pytestmark = [pytest.mark.real, pytest.mark.services]


@dataclass
class Front:
    """A proxy in front of the cluster, and what its clients need."""

    kafka: ForeignKafka
    authority: RunAuthority
    proxy: ClusterProxy
    board: Board
    loop: ProxyLoop
    names: dict[bytes, str] = field(default_factory=dict)

    def settings(self, mechanism: Mechanism = "PLAIN", user: tuple[str, str] = JOB) -> dict[str, Any]:
        return self.kafka.settings(user, mechanism, ca=self.authority.ca, at=self.proxy.bootstrap)

    def producer(self, id: str, mechanism: Mechanism = "PLAIN") -> Producer:
        made = Producer({**self.settings(mechanism), "transactional.id": id, "transaction.timeout.ms": 20000})
        made.init_transactions(30)
        return made


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignKafka]:
    with Owner() as owner:
        yield ForeignKafka(owner, tmp_path_factory.mktemp("foreign"), components.ensure())


@pytest.fixture
def front(kafka: ForeignKafka, tmp_path: Path) -> Iterator[Front]:
    loop, board, names = ProxyLoop(), Board(), dict[bytes, str]()
    authority = RunAuthority.create(tmp_path / "authority")
    with Owner() as owner:
        proxy = ClusterProxy(
            loop,
            board,
            kafka.bootstrap[:2],  # so that one may die; the third is found in the answers
            "127.0.0.1",
            lambda: lease(owner, 1)[0],
            client_tls=authority.server_context(),
            upstream_tls=kafka.upstream,
            topic_names=names,
        )
        proxy.open()
        yield Front(kafka, authority, proxy, board, loop, names)
        loop.close()
        assert loop.failures == []


@pytest.fixture
def topic(kafka: ForeignKafka, request: pytest.FixtureRequest) -> str:
    name = PREFIX + "".join(c if c.isalnum() else "-" for c in request.node.name)
    kafka.create_topic(name)
    return name


def read(settings: dict[str, Any], topic: str, count: int, *, group: str = "") -> list[str]:
    """``count`` committed values of the topic; by a group, or from both partitions."""
    own = {"group.id": group or PREFIX + "reader", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, **own})
    if group:
        consumer.subscribe([topic])
    else:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
    found: list[str] = []

    def enough() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append((message.value() or b"").decode())
        return len(found) >= count

    try:
        wait_until(f"{count} records", enough, deadline_s=60, every_s=0.001, explain=lambda: repr(found))
        if group:
            consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return sorted(found)


def transact(producer: Producer, topic: str, *values: str) -> None:
    producer.begin_transaction()
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2)
    producer.commit_transaction(30)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_transactions_and_a_group_see_only_the_proxys_addresses(front: Front, topic: str, mechanism: Mechanism) -> None:
    producer = front.producer(topic, mechanism)
    transact(producer, topic, "a", "b", "c")
    assert read(front.settings(mechanism), topic, 3, group=topic) == ["a", "b", "c"]
    assert read(front.kafka.settings(), topic, 3) == ["a", "b", "c"]  # the cluster itself has them
    brokers = producer.list_topics(timeout=10).brokers
    assert {b.port for b in brokers.values()} == {proxy.port for proxy in front.proxy.proxies.values()}
    assert set(front.proxy.proxies) == {1, 2, 3}
    assert front.proxy.refusals == front.proxy.incidents == []


def test_clients_follow_a_new_leader(front: Front, topic: str) -> None:
    producer = front.producer(topic)
    transact(producer, topic, "before")
    front.proxy.discover(10, front.settings())
    old = front.kafka.leader(topic)
    front.kafka.kill(old)
    try:
        transact(producer, topic, "after")
        assert read(front.settings(), topic, 2) == ["after", "before"]
        assert front.kafka.leader(topic) != old
    finally:
        front.kafka.start(old)
        front.kafka.wait_for_brokers()
    assert front.proxy.refusals == []


def test_a_lost_answer_is_an_answer_that_the_cluster_gave(front: Front, topic: str) -> None:
    producer = front.producer(topic)
    rule = Rule(Condition("EndTxn", transactional_id=f"^{topic}$", committed=True), "drop-answer")
    front.board.arm(rule)
    transact(producer, topic, "x")
    hit = rule.wait_for_hit(10)
    answer = rule.wait_for_answer(hit, 10)
    front.board.disarm(rule)
    assert answer.facts["error_codes"] == [0]
    assert read(front.kafka.settings(), topic, 1) == ["x"]


def test_a_lost_request_never_reached_the_cluster_and_is_sent_again(front: Front, topic: str) -> None:
    producer = front.producer(topic)
    rule = Rule(Condition("Produce", topic=topic), "drop-request")
    front.board.arm(rule)
    transact(producer, topic, "x")
    hit = rule.wait_for_hit(10)
    front.board.disarm(rule)
    assert hit.delivered_at is None and hit.cut_at is not None
    assert hit.frame.facts["transactional_id"] == topic
    assert read(front.kafka.settings(), topic, 1) == ["x"]


def test_a_late_request_arrives_when_it_is_released(front: Front, topic: str) -> None:
    producer = front.producer(topic)
    rule = Rule(Condition("EndTxn", transactional_id=f"^{topic}$"), "late")
    front.board.arm(rule)
    transact(producer, topic, "x")  # librdkafka sends it again over a new connection
    hit = rule.wait_for_hit(10)
    rule.release()
    answer = rule.wait_for_answer(hit, 20)
    front.board.disarm(rule)
    assert "undecodable" not in answer.facts
    assert read(front.kafka.settings(), topic, 1) == ["x"]


def test_a_wrong_password_is_the_clusters_answer(front: Front) -> None:
    with pytest.raises(EnvironmentProblem, match="uthentication"):
        front.proxy.discover(8, front.settings(user=("job", "wrong")))
    assert front.proxy.refusals == []


def test_an_acl_applies_through_the_proxy(front: Front) -> None:
    made = Producer({**front.settings(), "transactional.id": "not-" + PREFIX})
    with pytest.raises(KafkaException, match=r"(?i)authoriz"):
        made.init_transactions(10)


def test_a_client_that_does_not_trust_the_authority_is_named(front: Front) -> None:
    settings = front.kafka.settings(at=front.proxy.bootstrap)  # trusts the cluster's authority only
    with pytest.raises(EnvironmentProblem, match=r"does not trust this run's authority"):
        front.proxy.discover(5, settings)


def test_a_client_without_tls_is_named(front: Front) -> None:
    settings = {**front.settings(), "security.protocol": "SASL_PLAINTEXT"}
    with pytest.raises(EnvironmentProblem, match=r"set its security.protocol to SSL or SASL_SSL"):
        front.proxy.discover(5, settings)


def test_a_cluster_of_another_authority_is_named(kafka: ForeignKafka, tmp_path: Path) -> None:
    loop = ProxyLoop()
    other = RunAuthority.create(tmp_path / "other")
    context = UpstreamTls(ssl.create_default_context(cafile=str(other.ca)), None)
    proxy = ClusterProxy(
        loop,
        Board(),
        kafka.bootstrap,
        "127.0.0.1",
        lambda: 0,
        client_tls=other.server_context(),
        upstream_tls=context,
    )
    proxy.open()
    with pytest.raises(EnvironmentProblem, match=r"certificate of 127.0.0.1:\d+ is not accepted.*authority \(ca\)"):
        proxy.discover(5, kafka.settings(ca=other.ca, at=proxy.bootstrap))
    loop.close()
