"""What a new librdkafka client must ask first, in a user's job and in the harness alike."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]  # exported, not in __all__


def meet_brokers(client: AdminClient, topic: str | None = None, *, timeout_s: float) -> ClusterMetadata:
    """The metadata of ``topic``, or of all: what a new client asks for before anything that needs a leader or a coordinator.

    It swaps its bootstrap handle for the broker's own when the first metadata comes. A lookup that is under way on the old
    handle is dropped and never sent again: one in five of them waited for the whole of its time-out (2.16.0). This request is
    not subject to that. Raises `KafkaException` without an answer.
    """
    return client.list_topics(topic, timeout=timeout_s)
