"""What topics hold at a moment, asked past every proxy: to tell whether somebody has written meanwhile."""

from __future__ import annotations

from typing import Any

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as _OffsetSpec  # type: ignore[attr-defined]  # exported, not in __all__

from onceproof.sinks.kafka_clients import meet_brokers
from onceproof.stack.api import Kafka
from onceproof.stack.kafka.clients import client_config

# Made here once: the class has no annotations.
_LATEST: Any = _OffsetSpec.latest()  # type: ignore[no-untyped-call]
_ASK_S = 10.0
"""The harness's own listeners are never faulted; an answer that takes longer means that the service is gone."""


def undecided(kafka: Kafka) -> bool:
    """Whether records of a transaction that has not ended are in some topic; one that was just ended has its markers to come."""
    return bool(undecided_topics(kafka))


def undecided_topics(kafka: Kafka) -> set[str]:
    """Topics that hold records of a transaction that has not ended."""
    stable, ends = stable_ends(kafka), all_ends(kafka)
    return {topic for topic in stable.keys() | ends.keys() if stable.get(topic) != ends.get(topic)}


def stable_ends(kafka: Kafka) -> dict[str, dict[int, int]]:
    """Topic -> partition -> last stable offset, of all topics but the brokers' own."""
    return _ends(kafka, IsolationLevel.READ_COMMITTED)


def all_ends(kafka: Kafka) -> dict[str, dict[int, int]]:
    """Topic -> partition -> high watermark, of all topics but the brokers' own."""
    return _ends(kafka, IsolationLevel.READ_UNCOMMITTED)


def _ends(kafka: Kafka, isolation: IsolationLevel) -> dict[str, dict[int, int]]:
    admin = AdminClient(client_config(kafka.harness_bootstrap))
    topics = meet_brokers(admin, timeout_s=_ASK_S).topics
    partitions = [
        TopicPartition(name, p) for name, t in topics.items() if not name.startswith("__") for p in t.partitions
    ]
    futures = admin.list_offsets(dict.fromkeys(partitions, _LATEST), isolation_level=isolation, request_timeout=_ASK_S)
    ends: dict[str, dict[int, int]] = {}
    for partition, future in futures.items():
        ends.setdefault(partition.topic, {})[partition.partition] = int(future.result(_ASK_S).offset)
    return ends
