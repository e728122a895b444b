"""Settings of the harness's own Kafka clients: they notice the loss of a broker quickly and reconnect quickly."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Producer

from onceproof.sinks.kafka_clients import SETTINGS


def client_config(bootstrap: str) -> dict[str, Any]:
    """The settings of every librdkafka client of the harness; each kind of client adds its own."""
    return {
        "bootstrap.servers": bootstrap,
        **SETTINGS,
        "topic.metadata.refresh.interval.ms": 2000,
        "metadata.max.age.ms": 6000,
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


def send(
    producer: Producer, topic: str, value: bytes | None, key: bytes | None, timeout_s: float, **record: Any
) -> list[Any]:
    """Send one record, and return the broker's answers to it: ``[None]`` if it has the record, else an error, or none in time."""
    return [error for error, _ in send_and_locate(producer, topic, value, key, timeout_s, **record)]


def send_and_locate(
    producer: Producer, topic: str, value: bytes | None, key: bytes | None, timeout_s: float, **record: Any
) -> list[tuple[Any, int | None]]:
    """Like `send`, with the record's offset next to each answer."""
    answers: list[tuple[Any, int | None]] = []
    producer.produce(
        topic, value, key, on_delivery=lambda error, sent: answers.append((error, sent.offset())), **record
    )
    producer.flush(timeout_s)
    return answers
