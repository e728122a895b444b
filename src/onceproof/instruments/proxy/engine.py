"""The proxy at work: listeners in front of services, all on one asyncio loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import uvloop

from onceproof.base.errors import EnvironmentProblem
from onceproof.instruments.proxy.amqp import AmqpConversation
from onceproof.instruments.proxy.frames import Conversation
from onceproof.instruments.proxy.kafka import KafkaConversation
from onceproof.instruments.proxy.link import Link
from onceproof.instruments.proxy.postgres import PostgresConversation
from onceproof.instruments.proxy.rules import Board

Service = Literal["kafka", "postgres", "amqp"]
Emit = Callable[..., object]
T = TypeVar("T")

#: A control call only changes the loop's own tables, or opens a listener.
_CONTROL_S = 10.0


class ProxyLoop:
    """The thread. `close` ends it and everything on it; idempotent."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        """Defects of ours, each of which ended a connection, and what could not be written down."""
        self.proxies: list[FrameProxy] = []
        """Those that work on it; they end with it."""
        self._loop = uvloop.new_event_loop()
        self._loop.set_exception_handler(self._failed)
        self._thread = threading.Thread(target=self._run, name="protocol proxy", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it there, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CONTROL_S)

    def soon(self, act: Callable[..., object], *args: object) -> None:
        """Have it called there; nothing, if the loop is gone."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act, *args)

    def close(self) -> None:
        self.soon(self._loop.stop)
        self._thread.join(_CONTROL_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            for proxy in self.proxies:  # while the loop can still tell their sockets
                self._loop.run_until_complete(proxy.end())
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            self._loop.close()

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """asyncio closes the connection in whose callback it happened; the run must be told."""
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")


@dataclass(frozen=True)
class Target:
    """What a proxy stands in front of."""

    service: Service
    host: str
    port: int


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
