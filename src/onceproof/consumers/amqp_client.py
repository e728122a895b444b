"""A consumer's end of an AMQP broker: messages by ``basic.get``, effects into a queue."""

from __future__ import annotations

import os
from typing import Any

import pika

from onceproof.consumers.client import Client, Taken


class Channels:
    """Two channels, or one for both where effect and acknowledgement are one transaction; and the mark."""

    def __init__(self, *, together: bool) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(os.environ["ONCEPROOF_AMQP_URL"]))
        self.together = together
        self.takes = connection.channel()
        self.writes = self.takes if together else connection.channel()
        self.writes.tx_select()
        # Last: the broker closes channels in their order, and this one tells the harness that all are closed.
        mark = connection.channel()
        mark.queue_declare(os.environ["ONCEPROOF_MARK"], auto_delete=True)
        mark.basic_consume(os.environ["ONCEPROOF_MARK"], lambda *_: None)

    def commit(self) -> None:
        self.takes.tx_commit()


class AmqpSource:
    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._queues = os.environ["ONCEPROOF_QUEUES"].split(",")

    def take(self) -> Taken | None:
        for queue in self._queues:
            frame, properties, body = self._channels.takes.basic_get(queue)
            if frame is not None:
                key = str((properties.headers or {}).get("key", "")).encode() or None
                tag = (frame.delivery_tag, properties)
                return Taken(str(properties.message_id), queue, key, body, frame.redelivered, tag)
        return None

    def acknowledge(self, taken: Taken) -> None:
        self._channels.takes.basic_ack(taken.tag[0])
        self._answered()

    def release(self, taken: Taken) -> None:
        self._channels.takes.basic_nack(taken.tag[0], requeue=True)
        self._answered()

    def idle(self) -> None:
        """Nothing: heartbeats are off."""

    def _answered(self) -> None:
        """What has no answer is followed by something that has one."""
        if not self._channels.together:
            self._channels.takes.basic_qos(prefetch_count=1)


class AmqpEffect:
    def __init__(self, channels: Channels, queue: str) -> None:
        self._channels = channels
        self._queue = queue

    def write(self, taken: Taken) -> None:
        properties: Any = taken.tag[1]
        self._channels.writes.basic_publish("", self._queue, taken.body, properties)
        if not self._channels.together:
            self._channels.writes.tx_commit()  # the broker offers no publisher confirms


def open_client(acknowledge: str) -> Client:
    channels = Channels(together=acknowledge == "with-effect")
    retry = os.environ.get("ONCEPROOF_RETRY")
    return Client(
        AmqpSource(channels),
        AmqpEffect(channels, os.environ["ONCEPROOF_OUTPUT"]),
        channels.commit,
        AmqpEffect(channels, retry) if retry else None,
    )
