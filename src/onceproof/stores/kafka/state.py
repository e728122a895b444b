"""What topics hold at a moment, read past every proxy, to detect writes between two moments."""

from __future__ import annotations

from typing import Any

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as _OffsetSpec  # type: ignore[attr-defined]  # exported, not in __all__

from onceproof.sinks.kafka_clients import meet_brokers
from onceproof.stack.api import Kafka

# A constant, because the class has no type annotations.
LATEST: Any = _OffsetSpec.latest()  # type: ignore[no-untyped-call]
ASK_S = 10.0
"""Faults never affect the harness's own listeners; if an answer takes longer, the service is gone."""


def undecided(kafka: Kafka) -> bool:
    """Whether some topic holds records of a transaction that has not ended, or whose markers are not written yet."""
    return bool(undecided_topics(kafka))


def undecided_topics(kafka: Kafka) -> set[str]:
    """Topics that hold records of a transaction that has not ended."""
    stable, ends = stable_ends(kafka), all_ends(kafka)
    return {topic for topic in stable.keys() | ends.keys() if stable.get(topic) != ends.get(topic)}


def stable_ends(kafka: Kafka) -> dict[str, dict[int, int]]:
    """Topic -> partition -> last stable offset, of the run's own topics."""
    return _ends(kafka, IsolationLevel.READ_COMMITTED)


def all_ends(kafka: Kafka) -> dict[str, dict[int, int]]:
    """Topic -> partition -> high watermark, of the run's own topics."""
    return _ends(kafka, IsolationLevel.READ_UNCOMMITTED)


def _ends(kafka: Kafka, isolation: IsolationLevel) -> dict[str, dict[int, int]]:
    admin = AdminClient(kafka.harness_client())
    topics = meet_brokers(admin, timeout_s=ASK_S).topics
    partitions = [TopicPartition(name, p) for name, t in topics.items() if kafka.is_own(name) for p in t.partitions]
    futures = admin.list_offsets(dict.fromkeys(partitions, LATEST), isolation_level=isolation, request_timeout=ASK_S)
    ends: dict[str, dict[int, int]] = {}
    for partition, future in futures.items():
        ends.setdefault(partition.topic, {})[partition.partition] = int(future.result(ASK_S).offset)
    return ends
