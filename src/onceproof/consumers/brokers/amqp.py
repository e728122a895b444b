"""The AMQP broker of consumers: a queue for each partition of the input, and one for each output.

A queue forgets what is taken from it. So each input queue has a twin that nobody takes from: the exchange puts a copy of every
message into it, in the same order, and the twin is read after the run as the log of what was really sent. The effects are the
messages in the output queue, read in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pika

from onceproof.base.timeline import Timeline
from onceproof.consumers.layout import Layout, Message
from onceproof.consumers.routes import Route
from onceproof.data import Record
from onceproof.history.writer import HistoryWriter
from onceproof.scenario.queues import twin
from onceproof.stack.amqp.broker import EmbeddedAmqp
from onceproof.stack.amqp.routes import AmqpRoutes


class AmqpBroker:
    """Implements `onceproof.consumers.brokers.contract.Broker`. ``routes``: one per consumer, for faults that read frames."""

    def __init__(self, broker: EmbeddedAmqp, routes: AmqpRoutes | None = None) -> None:
        self._broker = broker
        self._routes = routes

    def versions(self) -> Mapping[str, Any]:
        return self._broker.versions

    def check(self) -> None:
        self._broker.check()
        if self._routes is not None:
            self._routes.check()

    def lay_out(self, layout: Layout) -> AmqpQueues:
        return AmqpQueues(self._broker, layout, self._routes)


class AmqpQueues:
    """Implements `onceproof.consumers.brokers.contract.Queues`.

    Also `HasRoutes` and `CountsReady` of `onceproof.consumers.routes`.
    """

    def __init__(self, broker: EmbeddedAmqp, layout: Layout, routes: AmqpRoutes | None = None) -> None:
        self._broker = broker
        self._routes = routes
        self._layout = layout
        self._exchange = f"{layout.prefix}exchange"
        kept = {self._name(queue): [self._name(queue), twin(self._name(queue))] for queue in layout.inputs}
        retry = [layout.retry] if layout.retry is not None else []
        others = {self._name(queue): [self._name(queue)] for queue in (*layout.outputs.values(), *retry)}
        self._bindings = {**kept, **others}
        broker.declare(self._exchange, self._bindings)

    @property
    def frames(self) -> None:
        """None: rules are armed on the route of a single consumer here."""
        return

    def route(self, consumer: str) -> Route:
        assert self._routes is not None, "the run has made the routes: one of its faults reads frames"
        return self._routes.of(consumer)

    def await_ready(self, queue: str, ready: int) -> None:
        self._broker.await_ready(self._name(queue), ready)

    def environment(self, consumer: str, mark: str) -> Mapping[str, str]:
        layout = self._layout
        return {
            "ONCEPROOF_AMQP_URL": self._url(consumer),
            "ONCEPROOF_QUEUES": ",".join(self._name(queue) for queue in layout.queues_of[consumer]),
            "ONCEPROOF_OUTPUT": self._name(layout.outputs[layout.output_of[consumer]]),
            "ONCEPROOF_MARK": mark,
            **({"ONCEPROOF_RETRY": self._name(layout.retry)} if layout.retry is not None else {}),
        }

    def _url(self, consumer: str) -> str:
        return self._broker.url if self._routes is None else self._broker.url_through(self._routes.of(consumer).port)

    def publish(self, message: Message, record: Record) -> None:
        properties = pika.BasicProperties(
            message_id=f"m{message.number}",
            content_type="application/json",
            headers={"key": record.key.decode(errors="replace")} if record.key is not None else {},
        )
        self._broker.publish(self._exchange, self._name(message.queue), record.value, properties)

    def is_connected(self, consumer: str, mark: str, check: Callable[[], None]) -> bool:
        return self._broker.exists(mark)

    def await_gone(self, consumer: str, mark: str) -> None:
        self._broker.await_gone(mark)

    def refuse(self, output: str, refusing: bool) -> None:
        raise NotImplementedError("validated: a queue refuses nothing")

    def committed(self, group: str) -> None:
        """None: a queue counts its messages, not those that were done. A passive declare counts unacknowledged ones too."""
        return

    def collect(self, writer: HistoryWriter, timeline: Timeline) -> Mapping[str, Any]:
        for number, queue in enumerate(self._layout.inputs):
            writer.append("input", self._input(number, twin(self._name(queue))))
        for name, queue in self._layout.outputs.items():
            writer.append("output", self._output(name, self._name(queue)))
        return {}

    def remove(self) -> None:
        self._broker.remove(self._exchange, [queue for bound in self._bindings.values() for queue in bound])

    def _name(self, queue: str) -> str:
        return f"{self._layout.prefix}{queue}"

    def _input(self, number: int, kept: str) -> Iterator[dict[str, Any]]:
        for place, found in enumerate(self._broker.drain(kept)):
            yield {
                "topic": self._layout.topic,
                "partition": number,
                "offset": place,
                "key": found.key.encode() if "key" in found.headers else None,
                "value": found.body,
                "visibility": "committed",
            }

    def _output(self, output: str, queue: str) -> Iterator[dict[str, Any]]:
        for place, found in enumerate(self._broker.drain(queue)):
            text = _text(found.body)
            yield {
                "output": output,
                "op": "insert",
                "partition": 0,
                "offset": place,
                "key": found.key.encode() if "key" in found.headers else None,
                "content": text,
                "raw": found.body if text is None else None,
                "visibility": "committed",
            }


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
