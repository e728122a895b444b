"""The first request of every new librdkafka client, in a user's job and in the harness."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]  # exported, not in __all__


def meet_brokers(client: AdminClient, topic: str | None = None, *, timeout_s: float) -> ClusterMetadata:
    """The metadata of ``topic``, or of all topics. Call it first, before any request that needs a leader or a coordinator.

    A new client replaces its bootstrap handle by the broker's own when it gets the first metadata. A lookup that is in
    progress on the old handle is dropped and never sent again: one in five waited for its whole timeout (librdkafka
    2.16.0). This request is not affected. Raises `KafkaException` if there is no answer.
    """
    return client.list_topics(topic, timeout=timeout_s)
