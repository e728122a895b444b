"""A member of a group that is not static loses its partitions during a take. The answers of its Kafka client are made up."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from onceproof.consumers.clients.kafka_group import KafkaGroup


class Record:
    def __init__(self, code: int | None = None) -> None:
        self._code = code

    def error(self) -> KafkaError | None:
        return None if self._code is None else KafkaError(self._code)

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 1

    def offset(self) -> int:
        return 0

    def headers(self) -> list[tuple[str, bytes]]:
        return [("message", b"m1")]

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"


class Client:
    """Is assigned t-1, which has one record. The test decides what each poll returns or does; ``polled`` counts them."""

    def __init__(self, *polls: Record | Callable[[], None] | None) -> None:
        self._polls = list(polls)
        self.polled = 0
        self.asked_at: list[int] = []
        """After how many polls it was asked for the end of the partition, the first step of taking from it."""

    def assignment(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(topic="t", partition=1)]

    def committed(self, _places: object, timeout: float) -> list[SimpleNamespace]:
        return [SimpleNamespace(error=None, offset=-1001)]

    def get_watermark_offsets(self, _place: object, timeout: float) -> tuple[int, int]:
        self.asked_at.append(self.polled)
        return 0, 1

    def poll(self, _timeout: float) -> Record | None:
        self.polled += 1
        brought = self._polls.pop(0)
        if callable(brought):
            brought()
            return None
        return brought


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> KafkaGroup:
    for name in ("QUEUES", "TOPICS", "GROUP", "MARK", "CONSUMER"):
        monkeypatch.setenv(f"ONCEPROOF_{name}", "t-1" if name == "QUEUES" else "t")
    monkeypatch.setenv("ONCEPROOF_KAFKA", "127.0.0.1:1")
    monkeypatch.setenv("ONCEPROOF_POLL_INTERVAL_MS", "1000")
    monkeypatch.delenv("ONCEPROOF_MEMBER", raising=False)
    made = KafkaGroup()
    made.consumer.close()
    return made


def test_partitions_revoked_during_a_take_are_taken_from_when_they_are_back(
    group: KafkaGroup,
) -> None:
    def revoked() -> None:
        group._forget_partitions(group.consumer, [])

    client: Any = Client(None, None, revoked, Record())
    group.consumer = client
    taken = group.take()
    assert taken is not None and taken.message == "m1" and client.polled == 4


def test_a_removed_member_takes_nothing_before_it_has_joined_again(group: KafkaGroup) -> None:
    client: Any = Client(Record(KafkaError._MAX_POLL_EXCEEDED), Record())
    group.consumer = client
    taken = group.take()
    assert taken is not None and client.asked_at == [2]
