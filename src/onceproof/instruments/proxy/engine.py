"""The proxy at work: listeners in front of services, all on the loop of `onceproof.instruments.proxy.loop`."""

from __future__ import annotations

import asyncio
from typing import Any

from onceproof.base.errors import EnvironmentProblem
from onceproof.instruments.proxy.amqp import AmqpConversation
from onceproof.instruments.proxy.frames import Conversation
from onceproof.instruments.proxy.kafka import KafkaConversation
from onceproof.instruments.proxy.link import Link
from onceproof.instruments.proxy.loop import Emit, ProxyLoop, Target
from onceproof.instruments.proxy.postgres import PostgresConversation
from onceproof.instruments.proxy.rules import Board


class FrameProxy:
    """One listener in front of one service. Safe from any thread.

    ``board`` holds the rules and may be shared by the proxies of a cluster, as ``topic_names`` is. ``emit(kind, **data)``, as
    `Timeline.emit`, is told what became of every frame that a rule stopped, and of connections that cannot be read.
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
    ) -> None:
        self.name = name
        self.host, self.port = listen
        self.target = target
        self.board = board
        self._emit = emit
        self.away = False
        """Whether everybody is turned away."""
        self.refusals: list[str] = []
        """Why connections were refused: the setting to change is named."""
        self.loop = loop
        self._topic_names = topic_names if topic_names is not None else {}
        self._server: asyncio.Server | None = None
        self.links: set[Link] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        loop.proxies.append(self)

    def emit(self, kind: str, **data: Any) -> None:
        """Tell the run. asyncio takes an OSError for one of the connection's, and says nothing: the run must hear of it."""
        try:
            self._emit(kind, **data)
        except OSError as failure:
            self.loop.failures.append(f"{self.name} could not write down {kind}: {failure!r}")

    def open(self) -> None:
        """Listen, and turn nobody away. Idempotent. Raises `EnvironmentProblem` if the port is taken."""
        self.away = False
        try:
            self.loop.call(self._open())
        except OSError as taken:
            raise EnvironmentProblem(
                f"the protocol proxy {self.name} cannot listen on {self.host}:{self.port}: {taken.strerror}",
                hint="end what holds the port (`onceproof cleanup` ends abandoned runs)",
            ) from taken

    def cut(self) -> None:
        """Close every connection and refuse new ones, until `open`."""
        self.loop.call(self.end())

    def reset(self) -> int:
        """Reset the connections that stand, and say how many; whoever connects again is let in."""
        return self.loop.call(self._reset())

    def turn_away(self) -> None:
        """Reset who connects, and whoever says or is told anything, until `open`. A connection that nobody uses stands."""
        self.away = True

    def conversation(self) -> Conversation:
        if self.target.service == "kafka":
            return KafkaConversation(self.board, self._topic_names, self.name)
        if self.target.service == "amqp":
            return AmqpConversation(self.board, self.name)
        return PostgresConversation(self.board, self.name)

    async def _open(self) -> None:
        if self._server is None:
            running = asyncio.get_running_loop()
            self._server = await running.create_server(
                lambda: Link(self).client, self.host, self.port, reuse_address=True, backlog=512
            )
            self.port = self._server.sockets[0].getsockname()[1]

    async def _reset(self) -> int:
        standing = list(self.links)
        for link in standing:
            link.end("reset")
        return len(standing)

    async def end(self) -> None:
        """`cut`, on the loop itself."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for link in list(self.links):
            link.end("abort")
