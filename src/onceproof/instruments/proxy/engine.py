"""The protocol proxy's listeners, one in front of each service, all on the loop of `onceproof.instruments.proxy.loop`."""

from __future__ import annotations

import asyncio
import socket
from ssl import SSLContext
from typing import Any

from onceproof.base.errors import EnvironmentProblem
from onceproof.instruments.http_conversation import HttpConversation
from onceproof.instruments.proxy.accept import Acceptor
from onceproof.instruments.proxy.amqp import AmqpConversation
from onceproof.instruments.proxy.frames import Conversation, Refused
from onceproof.instruments.proxy.kafka import KafkaConversation
from onceproof.instruments.proxy.kafka_rewrite import Address
from onceproof.instruments.proxy.link import NO_DESCRIPTOR, Link
from onceproof.instruments.proxy.loop import Emit, ProxyLoop, Target
from onceproof.instruments.proxy.postgres import PostgresConversation
from onceproof.instruments.proxy.rules import Board
from onceproof.instruments.proxy.tls import UpstreamTls


class FrameProxy:
    """One listener in front of one service. Thread-safe.

    ``client_tls``: clients of Kafka must use TLS, and those of Postgres may. ``upstream_tls``: open TLS to the service.
    ``address``: replaces the brokers' addresses in Kafka's answers; see `onceproof.instruments.proxy.cluster`.

    ``board`` holds the rules; the proxies of a cluster may share it, and ``topic_names`` too. The proxy calls
    ``emit(kind, **data)``, which works like `Timeline.emit`, for every frame that a rule stopped and for connections that it
    cannot read.
    """

    def __init__(
        self,
        loop: ProxyLoop,
        name: str,
        listen: tuple[str, int],
        target: Target,
        board: Board,
        *,
        emit: Emit = lambda _kind, **_data: None,
        topic_names: dict[bytes, str] | None = None,
        client_tls: SSLContext | None = None,
        upstream_tls: UpstreamTls | None = None,
        address: Address | None = None,
    ) -> None:
        self.name = name
        self.host, self.port = listen
        self.target = target
        self.board = board
        self.client_tls = client_tls
        self.upstream_tls = upstream_tls
        self.address = address
        self.entered_tls = False
        """Whether TLS with the service has ever been opened."""
        self._emit = emit
        self.rejecting = False
        """Whether connections are reset when they are made or used, see `reject_clients`."""
        self.refusals: list[str] = []
        """Why connections were refused; each sentence names the setting to change."""
        self.incidents: list[str] = []
        """Why connections ended before they began, although no setting is wrong: a peer died, or descriptors ran out."""
        self.requesting: set[str] | None = None
        """The clients, by address, that sent a request since `note_requests`; None before it. New ones are added while it runs."""
        self.loop = loop
        self._topic_names = topic_names if topic_names is not None else {}
        self._acceptor: Acceptor | None = None
        self.links: set[Link] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        loop.proxies.append(self)

    def emit(self, kind: str, **data: Any) -> None:
        """Emit an event. Keeps an OSError as a failure: asyncio would take it for a connection error and drop it silently."""
        try:
            self._emit(kind, **data)
        except OSError as failure:
            self.loop.failures.append(f"{self.name} could not record the event {kind}: {failure!r}")

    def refuse(self, why: Refused) -> None:
        """Add to `refusals`, and report it once. Called by a link."""
        self._note(self.refusals, f"{self.name} refused {why.what}: {why}")

    def incident(self, why: str) -> None:
        """Add to `incidents`, and report it once. Called by a link."""
        self._note(self.incidents, f"{self.name}: {why}")

    def _note(self, notes: list[str], sentence: str) -> None:
        if sentence not in notes:
            notes.append(sentence)
            self.emit("warning", message=sentence)

    def open(self) -> None:
        """Listen, and accept every connection. Idempotent. Raises `EnvironmentProblem` if the port is taken."""
        self.rejecting = False
        try:
            self.loop.call(self._open())
        except OSError as taken:
            raise EnvironmentProblem(
                f"the protocol proxy {self.name} cannot listen on {self.host}:{self.port}: {taken.strerror}",
                hint="end the process that holds the port (`onceproof cleanup` ends abandoned runs)",
            ) from taken

    def cut(self) -> None:
        """Close every connection and refuse new ones, until `open`."""
        self.loop.call(self.end())

    def reset(self) -> int:
        """Reset all open connections and return how many there were. Clients may connect again."""
        return self.loop.call(self._reset())

    def reject_clients(self) -> None:
        """Reset new connections, and existing ones on their next read or write, until `open`. Idle connections stay open."""
        self.rejecting = True

    def note_requests(self) -> None:
        """From now on collect in `requesting` the clients that send a request, and those that wait for an answer already."""

        async def begin() -> None:
            self.requesting = {link.peer for link in self.links if link.awaits_answer}

        self.loop.call(begin())

    def conversation(self) -> Conversation:
        if self.target.service == "kafka":
            return KafkaConversation(self.board, self._topic_names, self.name, self.address)
        if self.target.service == "amqp":
            return AmqpConversation(self.board)
        if self.target.service == "object-store":
            return HttpConversation(self.board)
        return PostgresConversation(self.board, self.name, encrypted=self.upstream_tls is not None)

    def open_on_loop(self) -> None:
        """Do what `open` does; called on the loop itself. Raises `OSError` if the port is taken."""
        if self._acceptor is None:
            self._acceptor = Acceptor(self.host, self.port, self._accepted, self._not_accepted)
            self.port = self._acceptor.port

    async def _open(self) -> None:
        self.open_on_loop()

    def _accepted(self, connection: socket.socket) -> None:
        running = asyncio.get_running_loop()
        task = running.create_task(self._serve(running, connection))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _serve(self, running: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
        if self._acceptor is None:  # cut since
            connection.close()
            return
        _, client = await running.connect_accepted_socket(lambda: Link(self).client, connection)
        if self._acceptor is None:
            client.cut("abort")

    def _not_accepted(self, failure: OSError) -> None:
        advice = "; raise the limit (`ulimit -n`)" if failure.errno in NO_DESCRIPTOR else ""
        self.incident(f"could not accept a connection: {failure.strerror}{advice}")

    async def _reset(self) -> int:
        links = list(self.links)
        for link in links:
            link.end("reset")
        return len(links)

    async def end(self) -> None:
        """Do what `cut` does; runs on the loop itself."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        for link in list(self.links):
            link.end("abort")
