"""A consumer's end of an AMQP broker: messages by ``basic.get``, effects into a queue.

A step over a connection that has broken is lost, and the next take makes a new connection: what was held on the old one is the
broker's again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pika
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, ConnectionWrongStateError, StreamLostError

from onceproof.consumers.clients.contract import Client, Lost, Returned, Taken

#: AMQP's reply code for a mandatory message that no queue takes: RabbitMQ returns the message, Qpid ends the connection.
_NO_ROUTE = 312


class Channels:
    """Two channels, or one for both where effect and acknowledgement are one transaction; and the mark."""

    def __init__(self, *, together: bool) -> None:
        self.together = together
        self._broken = False
        self._returned: list[str] = []
        self._open()

    def _open(self) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(os.environ["ONCEPROOF_AMQP_URL"]))
        self.takes = self._connection.channel()
        self.writes = self.takes if self.together else self._connection.channel()
        self.writes.tx_select()
        self.writes.add_on_return_callback(lambda _channel, method, *_: self._returned.append(method.reply_text))
        # Last: the broker closes channels in their order, and this one tells the harness that all are closed.
        mark = self._connection.channel()
        mark.queue_declare(os.environ["ONCEPROOF_MARK"], auto_delete=True)
        mark.basic_consume(os.environ["ONCEPROOF_MARK"], lambda *_: None)

    def reopen(self) -> None:
        """Make a new connection if the old one has broken, whether a step has found that already or not."""
        if not self._broken:
            with suppress(Lost), self.step():
                pass
        if self._broken:
            self._open()
            self._broken = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step over the connection; `Lost` if that breaks, or has broken. `Returned` if what it published has no queue."""
        try:
            self._connection.process_data_events(0)  # an end that has come is seen before anything is sent
            yield
        except (StreamLostError, ConnectionWrongStateError) as broken:
            self._broken = True
            raise Lost(repr(broken)) from broken
        except (ChannelClosedByBroker, ConnectionClosedByBroker) as closed:
            if closed.reply_code != _NO_ROUTE:
                raise
            raise Returned(closed.reply_text) from closed

    def publish(self, queue: str, body: bytes, properties: Any) -> None:
        """Into ``queue``, as part of the transaction on ``writes``."""
        self.writes.basic_publish("", queue, body, properties, mandatory=True)

    def commit(self) -> None:
        with self.step():
            self.commit_writes()

    def commit_writes(self) -> None:
        """Within a step. A message that comes back comes before the answer to the commit."""
        self.writes.tx_commit()  # the broker offers no publisher confirms
        self._connection.process_data_events(0)
        if self._returned:
            raise Returned(self._returned[0])


class AmqpSource:
    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._queues = os.environ["ONCEPROOF_QUEUES"].split(",")

    def take(self) -> Taken | None:
        self._channels.reopen()
        for queue in self._queues:
            frame, properties, body = self._channels.takes.basic_get(queue)
            if frame is not None:
                key = str((properties.headers or {}).get("key", "")).encode() or None
                tag = (frame.delivery_tag, properties)
                return Taken(str(properties.message_id), queue, key, body, frame.redelivered, tag)
        return None

    def acknowledge(self, taken: Taken) -> None:
        with self._channels.step():
            self._channels.takes.basic_ack(taken.tag[0])
            self._answered()

    def release(self, taken: Taken) -> None:
        with self._channels.step():
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
        with self._channels.step():
            self._channels.publish(self._queue, taken.body, properties)
            if not self._channels.together:
                self._channels.commit_writes()


def open_client(acknowledge: str) -> Client:
    channels = Channels(together=acknowledge == "with-effect")
    retry = os.environ.get("ONCEPROOF_RETRY")
    return Client(
        AmqpSource(channels),
        AmqpEffect(channels, os.environ["ONCEPROOF_OUTPUT"]),
        channels.commit,
        AmqpEffect(channels, retry) if retry else None,
    )
