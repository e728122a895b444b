"""The settings and the first request of every new librdkafka client, in a user's job and in the harness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, not in __all__
        AdminClient,
        ClusterMetadata,
    )

SETTINGS: dict[str, Any] = {
    # By default, one reset connection makes librdkafka forget all brokers, and a pending call, a transactional one too, can
    # hang for ever.
    "metadata.recovery.strategy": "none",
    "socket.timeout.ms": 3000,
    "socket.connection.setup.timeout.ms": 1500,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 400,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 300,
    "topic.metadata.refresh.fast.interval.ms": 100,
}
"""Of every client: it notices the loss of a broker quickly and reconnects quickly."""


def meet_brokers(client: AdminClient, topic: str | None = None, *, timeout_s: float) -> ClusterMetadata:
    """The metadata of ``topic``, or of all topics. Call it first, before any request that needs a leader or a coordinator.

    A new client replaces its bootstrap handle by the broker's own when it gets the first metadata. A lookup that is in
    progress on the old handle is dropped and never sent again: one in five waited for its whole timeout (librdkafka
    2.16.0). This request is not affected. Raises `KafkaException` if there is no answer.
    """
    return client.list_topics(topic, timeout=timeout_s)
