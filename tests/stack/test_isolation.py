"""What cleaning a shared stack must not overlook, without services: the clients are real, and talk to librdkafka's own test broker."""

from __future__ import annotations

from typing import cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.kafka.cluster import EmbeddedKafka
from onceproof.stack.sharing import isolation
from onceproof.stack.sharing.isolation import NotIsolated, isolate

TEST_BROKER: dict[str, str | int | float | bool] = {
    "bootstrap.servers": "replaced",
    "test.mock.num.brokers": 1,
    "log_level": 0,
}


def test_only_the_topics_of_kafka_itself_remain() -> None:
    kafka = EmbeddedKafka({}, {})
    producer = Producer(TEST_BROKER)
    for topic in ("departures", "__progress", "__debezium-heartbeat.x", "__consumer_offsets", "__transaction_state"):
        producer.produce(topic, b"one record")
    assert producer.flush(20) == 0
    assert isolation._topics(kafka, cast(AdminClient, producer)) == [
        "__debezium-heartbeat.x",
        "__progress",
        "departures",
    ]
    assert not kafka.is_own("__share_group_state")


def test_groups_that_a_broker_cannot_list_are_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_GONE_S", 0.2)
    admin = AdminClient(TEST_BROKER)
    assert admin.list_consumer_groups(request_timeout=10).result().errors, "this broker cannot list groups"
    with pytest.raises(NotIsolated, match=r"its consumer groups cannot be listed: .*not supported by broker"):
        isolation._groups(admin)


@pytest.mark.parametrize(("failure", "words"), [(OSError(), "OSError"), (OSError("no space\nleft"), "no space")])
def test_whatever_fails_is_said_in_one_line(failure: Exception, words: str) -> None:
    class Stack:
        def disturbed(self) -> list[str]:
            raise failure

    with pytest.raises(NotIsolated) as failed:
        isolate(cast(EmbeddedStack, Stack()))
    assert failed.value.message == f"it could not be cleaned: {words}"
