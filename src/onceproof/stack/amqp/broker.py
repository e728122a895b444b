"""An AMQP 0-9-1 broker on loopback: Apache Qpid Broker-J, in memory, for one run or many replays of it.

Clients must know two things (seen with 9.2.0). It has no publisher confirms, so a publisher that must know that its message
is in a queue publishes in a transaction. And a passive declare also counts unacknowledged messages.
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
    """One message as taken from a queue."""

    key: str
    body: bytes
    headers: dict[str, Any]


class EmbeddedAmqp:
    """One broker process. Created by `start`, stopped by its owner. A subclass says how another broker differs."""

    name = "Qpid Broker-J"
    virtual_host = "default"
    durable = False
    """Whether queues are declared durable. Some brokers deprecate queues that are neither durable nor exclusive."""

    def __init__(self, service: Service, port: int, password: str, versions: dict[str, Any]) -> None:
        self.service = service
        self.port = port
        self.versions = versions
        self.password = password
        self._connection: pika.BlockingConnection | None = None

    @classmethod
    def start(cls, owner: Owner, log: Path, components: AmqpComponents) -> Self:
        """Start it on a private folder with a new password, and wait until it accepts a client.

        Raises `ServiceFailed` with its last log lines.
        """
        folder, password = private_folder(owner, "amqp")
        (port,) = lease(owner, 1)
        settings = folder / "config.json"
        settings.write_text(json.dumps(_configuration(port, password)), encoding="utf-8")
        class_path = ":".join(map(str, components.broker_jars))
        argv: list[str | Path] = [components.java.path, *_JVM, "-cp", class_path, "org.apache.qpid.server.Main"]
        argv += ["-st", "Memory", "-icp", settings, "-prop", f"qpid.work_dir={folder}"]
        env = {name: value for name, value in os.environ.items() if name not in FOREIGN_OPTIONS}
        # SIGKILL: it stores nothing on disk, and a clean stop takes two seconds.
        service = owner.start("amqp", argv, log=log, env=env, cwd=folder, stop_signal=signal.SIGKILL)
        versions = {**components.versions, "java": components.java.version, "pika": installed("pika")}
        return cls(service, port, password, versions)._when_ready(owner, "the AMQP broker", _START_DEADLINE_S)

    def _when_ready(self, owner: Owner, name: str, deadline_s: float) -> Self:
        """Itself, once it accepts a client. From then on the owner closes the harness's connection."""
        # Its port is open before its virtual host is active, so only a complete connection shows that it is ready.
        self._connection = wait_until(
            f"{name} to accept a client",
            lambda: pika.BlockingConnection(pika.URLParameters(self.url)),
            deadline_s=deadline_s,
            ignoring=(AMQPError, OSError),
            abandon=self.check,
        )
        owner.push(self.close)
        return self

    @property
    def url(self) -> str:
        """URL for clients. It contains the password, so it goes into environments, never into a log or a command line."""
        return self.url_through(self.port)

    def url_through(self, port: int) -> str:
        """The same URL through a proxy on loopback."""
        # No heartbeats: a consumer that is held at a step does not answer them, and would be disconnected.
        return f"amqp://{USER}:{self.password}@{HOST}:{port}/{self.virtual_host}?heartbeat=0"

    def check(self) -> None:
        """Raise `ServiceFailed`, with its last log lines, if the process has ended."""
        self.service.check_running()

    def close(self) -> None:
        """Close the harness's own connection. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(AMQPError, OSError):
                connection.close()

    def declare(self, exchange: str, bindings: dict[str, list[str]]) -> None:
        """Declare an exchange, and bind queues to it that each get a copy of the messages under a key: key -> queues.

        Raises `ServiceFailed` for a queue that does not exist afterwards, or to which nothing can be published.
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
        """Publish a message to it as a client does, by its name only, and take it back: some names lead elsewhere."""
        try:
            self.publish("", queue, b"", pika.BasicProperties())
            taken = len(list(self.drain(queue)))
        except (ServiceFailed, AMQPError) as refused:
            raise ServiceFailed(f"{self.name} cannot use the queue {queue!r}: {refused}") from refused
        if taken != 1:
            raise ServiceFailed(
                f"{self.name} cannot use the queue {queue!r}: 1 message was published to it, {taken} were taken from it"
            )

    def remove(self, exchange: str, queues: list[str]) -> None:
        with self._channel() as channel:
            for queue in queues:
                channel.queue_delete(queue)
            channel.exchange_delete(exchange)

    def publish(self, exchange: str, key: str, body: bytes, properties: pika.BasicProperties) -> None:
        """Publish, and return when the broker has confirmed that the message is in every queue bound to ``key``."""
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
        """Take every ready message of ``queue``, in the queue's order."""
        with self._channel() as channel:
            while True:
                frame, properties, body = channel.basic_get(queue, auto_ack=True)
                if frame is None:
                    return
                key = properties.headers.get("key", "") if properties.headers else ""
                yield Received(str(key), body, dict(properties.headers or {}))

    def await_gone(self, mark: str) -> None:
        """Wait until the broker has noticed the end of a client and has requeued its unacknowledged messages.

        ``mark`` is an auto-delete queue that the client consumes on a channel that it opened *after* the channel of its
        messages. The broker closes channels in their order, so unacknowledged messages are back in their queue before the
        mark disappears.
        """
        wait_until(
            f"the broker to notice the end of the client of {mark}",
            lambda: not self.exists(mark),
            deadline_s=_GONE_DEADLINE_S,
            every_s=0.01,
            hint="the mark is deleted with its last consumer if the client has declared it auto-delete and consumes it "
            "(docs/consumers.md)",
        )

    def ready(self, queue: str) -> int:
        """How many messages the broker counts in ``queue``: Qpid counts unacknowledged ones too, RabbitMQ only ready ones."""
        with self._channel() as channel:
            return int(channel.queue_declare(queue, passive=True).method.message_count)

    def await_ready(self, queue: str, ready: int) -> None:
        """Nothing to wait for: a client's messages are requeued before its mark disappears (`await_gone`)."""

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
        """A new channel on the harness's own connection; not shared, because an error closes it."""
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
                f"{self.name} refused the harness's connection or request: {error!r}", log_tail=self.service.log_tail()
            ) from error


def private_folder(owner: Owner, name: str) -> tuple[Path, str]:
    """A new folder of the run that only this user can read, and a new password, which is masked everywhere."""
    folder, password = owner.scratch / name, secrets.token_urlsafe(18)
    folder.mkdir(mode=0o700)
    hide(password)
    return folder, password


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
                # Without them no name resolves to the virtual host: 404.
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
