"""Settings of the harness's own Kafka clients: they notice the loss of a broker quickly and reconnect quickly."""

from __future__ import annotations

from typing import Any


def client_config(bootstrap: str) -> dict[str, Any]:
    """The settings of every librdkafka client of the harness; each kind of client adds its own."""
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
        # The default, rebootstrap, drops every broker handle after one reset connection, and a transactional call that
        # waits on such a handle hangs longer than its own time-out.
        "metadata.recovery.strategy": "none",
        # No logs: a fault cuts brokers off on purpose, and errors that matter are returned by the calls.
        "log_level": 0,
    }


def producer_config(bootstrap: str) -> dict[str, Any]:
    """`client_config` and a producer's time-outs: request < message < transaction, each shorter than a fault lasts.

    A message survives several attempts of one request (3 s) and fails (8 s) before the broker aborts the transaction (10 s),
    so that the client's own time-out reports a failure, and not an error because it was fenced.
    """
    return {
        **client_config(bootstrap),
        "request.timeout.ms": 3000,
        "message.timeout.ms": 8000,
        "transaction.timeout.ms": 10000,
        "linger.ms": 0,
    }
