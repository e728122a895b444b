"""An AMQP 0-9-1 broker on loopback: Apache Qpid Broker-J, in memory, for one run or many replays of it.

Two things of it that clients must know (seen with 9.2.0): it does not offer publisher confirms, so whoever must know that a
message is in its queue publishes in a transaction; and a passive declare counts unacknowledged messages too.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, Self

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker

from onceproof.base.errors import ServiceFailed
from onceproof.base.masking import hide
from onceproof.base.waiting import wait_until
from onceproof.stack.fetch.components import AmqpComponents
from onceproof.stack.fetch.java import FOREIGN_OPTIONS
from onceproof.stack.processes.owner import Owner, Service
from onceproof.stack.processes.ports import lease

HOST = "127.0.0.1"
USER = "onceproof"
_START_DEADLINE_S = 60.0
_GONE_DEADLINE_S = 15.0
_NOT_FOUND = 404
_JVM = (
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
    "-Djava.awt.headless=true",
)


@dataclass(frozen=True)
class Received:
    """One message as it stood in a queue."""

    key: str
    body: bytes
    headers: dict[str, Any]


class EmbeddedAmqp:
    """One broker process. Made by `start`, stopped by its owner. What another broker has otherwise stands in its subclass."""

    name = "Qpid Broker-J"
    virtual_host = "default"
    durable = False
    """Of queues: to some brokers those that are neither durable nor exclusive are a thing of the past."""
    counts_ready = False
    """Whether a passive declare counts what may be taken, and not what is unacknowledged too."""

    def __init__(self, service: Service, port: int, password: str, versions: dict[str, Any]) -> None:
        self.service = service
        self.port = port
        self.versions = versions
        self.password = password
        self._connection: pika.BlockingConnection | None = None

    @classmethod
    def start(cls, owner: Owner, log: Path, components: AmqpComponents) -> Self:
        """Start it on a private folder with a password of its own, and wait until it lets a client in.

        Raises `ServiceFailed` with its last log lines.
        """
        folder = owner.scratch / "amqp"
        folder.mkdir(mode=0o700)
        (port,) = lease(owner, 1)
        password = secrets.token_urlsafe(18)
        hide(password)
        settings = folder / "config.json"
        settings.write_text(json.dumps(_configuration(port, password)), encoding="utf-8")
        class_path = ":".join(map(str, components.broker_jars))
        argv: list[str | Path] = [components.java.path, *_JVM, "-cp", class_path, "org.apache.qpid.server.Main"]
        argv += ["-st", "Memory", "-icp", settings, "-prop", f"qpid.work_dir={folder}"]
        env = {name: value for name, value in os.environ.items() if name not in FOREIGN_OPTIONS}
        # SIGKILL: it keeps nothing beyond its memory, and a clean stop takes two seconds.
        service = owner.start("amqp", argv, log=log, env=env, cwd=folder, stop_signal=signal.SIGKILL)
        versions = {**components.versions, "java": components.java.version, "pika": installed("pika")}
        broker = cls(service, port, password, versions)
        wait_until(
            "the AMQP broker to let a client in", broker._answers, deadline_s=_START_DEADLINE_S, abandon=broker.check
        )
        owner.push(broker.close)
        return broker

    @property
    def url(self) -> str:
        """For clients. Holds the password: it goes into environments, never into a log or a command line."""
        return self.url_through(self.port)

    def url_through(self, port: int) -> str:
        """The same by way of a proxy on loopback."""
        # No heartbeats: a consumer that is held at a step does not answer them, and would be cut off.
        return f"amqp://{USER}:{self.password}@{HOST}:{port}/{self.virtual_host}?heartbeat=0"

    def check(self) -> None:
        """Raise `ServiceFailed`, with its last words, if the process has ended."""
        self.service.check_running()

    def close(self) -> None:
        """Give the harness's own connection back. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(AMQPError, OSError):
                connection.close()

    def declare(self, exchange: str, bindings: dict[str, list[str]]) -> None:
        """An exchange, and queues that get a copy of what it is sent under a key: key -> queues.

        Raises `ServiceFailed` for a queue that is not there afterwards, or that nothing can be published to.
        """
        with self._channel() as channel:
            channel.exchange_declare(exchange, "direct", auto_delete=False)
            for key, queues in bindings.items():
                for queue in queues:
                    channel.queue_declare(queue, durable=self.durable)
                    channel.queue_bind(queue, exchange, key)
        for queue in {queue for queues in bindings.values() for queue in queues}:
            self._check_queue(queue)

    def _check_queue(self, queue: str) -> None:
        """Publish a message to it as a client does, by its name alone, and take that back: some names lead elsewhere."""
        try:
            self.publish("", queue, b"", pika.BasicProperties())
            there = len(list(self.drain(queue)))
        except (ServiceFailed, AMQPError) as refused:
            raise ServiceFailed(f"{self.name} cannot use the queue {queue!r}: {refused}") from refused
        if there != 1:
            raise ServiceFailed(f"{self.name} cannot use the queue {queue!r}: of one message, {there} came out of it")

    def remove(self, exchange: str, queues: list[str]) -> None:
        with self._channel() as channel:
            for queue in queues:
                channel.queue_delete(queue)
            channel.exchange_delete(exchange)

    def publish(self, exchange: str, key: str, body: bytes, properties: pika.BasicProperties) -> None:
        """Publish and return when the broker has said that it is in every queue bound to ``key``."""
        with self._channel() as channel:
            returned: list[str] = []
            channel.tx_select()
            channel.add_on_return_callback(lambda _channel, method, *_: returned.append(method.reply_text))
            channel.basic_publish(exchange, key, body, properties, mandatory=True)
            channel.tx_commit()
            channel.connection.process_data_events(0)
        if returned:
            raise ServiceFailed(f"{self.name} has no queue for a message under {key!r}: {returned[0]}")

    def drain(self, queue: str) -> Iterator[Received]:
        """Take everything that is ready in ``queue``, in its order."""
        with self._channel() as channel:
            while True:
                frame, properties, body = channel.basic_get(queue, auto_ack=True)
                if frame is None:
                    return
                key = properties.headers.get("key", "") if properties.headers else ""
                yield Received(str(key), body, dict(properties.headers or {}))

    def await_gone(self, mark: str) -> None:
        """Wait until the broker has noticed the end of a client and has taken its messages back.

        ``mark`` is a queue that goes with the client's last consumer on it, which stands on the channel that the client opened
        *after* the one that it takes messages on: channels are closed in their order, so what was unacknowledged is
        back in its queue before the mark goes.
        """
        wait_until(
            f"the broker to notice the end of the client of {mark}",
            lambda: not self.exists(mark),
            deadline_s=_GONE_DEADLINE_S,
            every_s=0.01,
            hint="its mark goes when its last consumer does, if the client has declared it auto-delete and consumes it "
            "(docs/consumers.md)",
        )

    def ready(self, queue: str) -> int:
        """How many messages it counts in ``queue``; what that means, `counts_ready` says."""
        with self._channel() as channel:
            return int(channel.queue_declare(queue, passive=True).method.message_count)

    def await_ready(self, queue: str, ready: int) -> None:
        """Nothing to wait for: channels are closed in their order, so whoever's mark is gone has given back what he held."""

    def exists(self, queue: str) -> bool:
        try:
            with self._channel() as channel:
                channel.queue_declare(queue, passive=True)
        except ChannelClosedByBroker as refused:
            if refused.reply_code != _NOT_FOUND:
                raise
            return False
        return True

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        """A channel of the harness's own connection: one each, for an error closes it."""
        if self._connection is None or not self._connection.is_open:
            self._connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            channel = self._connection.channel()
            try:
                yield channel
            finally:
                if channel.is_open:
                    channel.close()
        except (AMQPError, OSError) as error:
            if isinstance(error, ChannelClosedByBroker):
                raise
            self.check()
            raise ServiceFailed(
                f"{self.name} refuses the harness: {error!r}", log_tail=self.service.log_tail()
            ) from error

    def _answers(self) -> bool:
        # Its port is open before its virtual host is active, so only a whole connection tells.
        try:
            self._connection = pika.BlockingConnection(pika.URLParameters(self.url))
        except (AMQPError, OSError):
            return False
        return True


def _configuration(port: int, password: str) -> dict[str, Any]:
    return {
        "name": "onceproof",
        "modelVersion": "9.0",
        "authenticationproviders": [
            {
                "name": "plain",
                "type": "Plain",
                "secureOnlyMechanisms": [],  # loopback, without TLS
                "users": [{"name": USER, "type": "managed", "password": password}],
            }
        ],
        "ports": [
            {
                "name": "AMQP",
                "port": str(port),
                "bindingAddress": HOST,
                "protocols": ["AMQP_0_9_1"],
                "authenticationProvider": "plain",
                # Without them no name leads to the virtual host: 404.
                "virtualhostaliases": [
                    {"name": "nameAlias", "type": "nameAlias"},
                    {"name": "defaultAlias", "type": "defaultAlias"},
                ],
            }
        ],
        "virtualhostnodes": [
            {
                "name": "default",
                "type": "Memory",
                "defaultVirtualHostNode": "true",
                "virtualHostInitialConfiguration": json.dumps({"type": "Memory"}),
            }
        ],
    }
