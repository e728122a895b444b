"""The client of an AMQP consumer: messages by ``basic.get``, effects into a queue.

A step over a broken connection is lost, and the next take makes a new connection: the broker has taken back what was held on
the old one.
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
    """The mark, and two channels; or one, if effect and acknowledgement are one transaction."""

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
        # Last: the broker closes channels in their order, so the end of this one shows the harness that all are closed.
        mark = self._connection.channel()
        mark.queue_declare(os.environ["ONCEPROOF_MARK"], auto_delete=True)
        mark.basic_consume(os.environ["ONCEPROOF_MARK"], lambda *_: None)

    def reopen(self) -> None:
        """Make a new connection if the old one is broken, also if no step has noticed that yet."""
        if not self._broken:
            with suppress(Lost), self.step():
                pass
        if self._broken:
            self._open()
            self._broken = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """Raises `Lost` if the connection breaks or is broken, and `Returned` if a published message has no queue."""
        try:
            self._connection.process_data_events(0)  # notice a closed connection before anything is sent
            yield
        except (StreamLostError, ConnectionWrongStateError) as broken:
            self._broken = True
            raise Lost(repr(broken)) from broken
        except (ChannelClosedByBroker, ConnectionClosedByBroker) as closed:
            if closed.reply_code != _NO_ROUTE:
                raise
            raise Returned(closed.reply_text) from closed

    def publish(self, queue: str, body: bytes, properties: Any) -> None:
        """Publish into ``queue``, as part of the transaction on ``writes``."""
        self.writes.basic_publish("", queue, body, properties, mandatory=True)

    def commit(self) -> None:
        with self.step():
            self.commit_writes()

    def commit_writes(self) -> None:
        """Called within a step. The broker returns a message before it answers the commit."""
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
            self._await_answer()

    def release(self, taken: Taken) -> None:
        with self._channels.step():
            self._channels.takes.basic_nack(taken.tag[0], requeue=True)
            self._await_answer()

    def idle(self) -> None:
        """Does nothing: heartbeats are off."""

    def _await_answer(self) -> None:
        """basic.ack and basic.nack have no answer, so a request that has one follows: its answer means that both arrived."""
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
