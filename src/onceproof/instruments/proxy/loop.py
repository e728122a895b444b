"""The asyncio loop that all proxies of a run share, in a thread of its own; and what a proxy stands in front of."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import uvloop

T = TypeVar("T")

#: A control call only changes the loop's own tables, or opens a listener.
_CONTROL_S = 10.0

Service = Literal["kafka", "postgres", "amqp"]


Emit = Callable[..., object]


class OnLoop(Protocol):
    """A proxy that works on the loop and is ended there."""

    refusals: list[str]

    async def end(self) -> None: ...


class ProxyLoop:
    """The thread. `close` ends it and everything on it; idempotent."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        """Defects of ours, each of which ended a connection, and what could not be written down."""
        self.proxies: list[OnLoop] = []
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
