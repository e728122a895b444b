"""Settings of the harness's own Kafka clients: quick to notice a broker that is gone, quick to come back."""

from __future__ import annotations

from typing import Any


def client_config(bootstrap: str) -> dict[str, Any]:
    """What every librdkafka client of the harness is made with; add to it what the kind of client needs."""
    return {
        "bootstrap.servers": bootstrap,
        "socket.timeout.ms": 3000,
        "socket.connection.setup.timeout.ms": 1500,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 400,
        "retry.backoff.ms": 50,
        "retry.backoff.max.ms": 300,
        "topic.metadata.refresh.fast.interval.ms": 100,
        "topic.metadata.refresh.interval.ms": 2000,
        "metadata.max.age.ms": 6000,
        # The default, rebootstrap, drops every broker handle after one reset connection, and a transactional call
        # that waits on such a handle hangs past its own time-out.
        "metadata.recovery.strategy": "none",
        # A broker that a fault has cut off is no news; what matters comes back as the error of a call.
        "log_level": 0,
    }


def producer_config(bootstrap: str) -> dict[str, Any]:
    """`client_config`, and a producer's time-outs: request < message < transaction, each shorter than a fault's patience.

    A message outlives several tries of one request (3 s) and fails (8 s) before the broker gives up the transaction (10 s),
    so that the client learns of a failure from its own clock and not by being fenced.
    """
    return {
        **client_config(bootstrap),
        "request.timeout.ms": 3000,
        "message.timeout.ms": 8000,
        "transaction.timeout.ms": 10000,
        "linger.ms": 0,
    }
