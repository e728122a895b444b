"""A listening socket on the proxies' loop. Failures to accept are reported, and do not end it, as they would uvloop's own server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

#: Without a free file descriptor the socket stays readable: the loop would do nothing but fail to accept.
_AGAIN_S = 0.1
_BACKLOG = 512
_MOST_AT_ONCE = 64


class Acceptor:
    """Listens as soon as it is made; `close` ends it. Both, and the callbacks, on the loop. Raises `OSError` if it cannot."""

    def __init__(
        self, host: str, port: int, accepted: Callable[[socket.socket], None], failed: Callable[[OSError], None]
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._accepted = accepted
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _listen(self) -> None:
        self._again = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                connection, _peer = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:  # the client has already left
                continue
            except OSError as failure:
                self._loop.remove_reader(self._socket)
                self._again = self._loop.call_later(_AGAIN_S, self._listen)
                self._failed(failure)
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._accepted(connection)
