"""The asyncio loop that all proxies of a run share, in a thread of its own; and the service behind a proxy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import uvloop

T = TypeVar("T")

#: A control call only changes the loop's own tables, or opens a listener.
_CONTROL_S = 10.0

Service = Literal["kafka", "postgres", "amqp", "object-store"]


Emit = Callable[..., object]


class OnLoop(Protocol):
    """A proxy that runs on the loop; `ProxyLoop.close` ends it there."""

    refusals: list[str]

    async def end(self) -> None: ...


class ProxyLoop:
    """The loop and its thread. `close` ends both and every proxy on the loop; idempotent."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        """Exceptions in the proxies' own code, each of which ended a connection, and events that could not be recorded."""
        self.proxies: list[OnLoop] = []
        """The proxies that run on this loop and end with it."""
        self._loop = uvloop.new_event_loop()
        self._loop.set_exception_handler(self._keep_failure)
        self._thread = threading.Thread(target=self._run, name="protocol proxy", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, from another thread, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CONTROL_S)

    def soon(self, act: Callable[..., object], *args: object) -> None:
        """Call a function on the loop soon; does nothing if the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act, *args)

    def close(self) -> None:
        self.soon(self._loop.stop)
        self._thread.join(_CONTROL_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            for proxy in self.proxies:  # before the loop closes: they need it to close their sockets
                self._loop.run_until_complete(proxy.end())
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            self._loop.close()

    def _keep_failure(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """asyncio only closes the connection whose callback raised; keep the exception, so that the run can report it."""
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")


@dataclass(frozen=True)
class Target:
    """The service behind a proxy, and its address."""

    service: Service
    host: str
    port: int
    via: tuple[str, int] | None = field(default=None, compare=False)
    """Where to connect instead: another proxy that leads there."""

    @property
    def next_hop(self) -> tuple[str, int]:
        """Where connections go first."""
        return self.via or (self.host, self.port)
