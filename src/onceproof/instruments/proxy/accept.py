"""Clients that come and go: a listening socket on the proxies' loop, and the death of a client from which nothing is read.

Failures to accept are reported, and do not end it, as they would uvloop's own server.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

#: How often to look whether a client still exists from which nothing is read.
_LOOK_EVERY_S = 0.1
_ESTABLISHED = "01"
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


async def has_died(client: str, listener: int, matters: Callable[[], bool]) -> bool:
    """Wait while a client's process exists and it ``matters``; whether the client, ``HOST:PORT``, has died or disconnected.

    For a client from which nothing is read: its end comes only after all of its data. False at once for a client that is not on
    this machine, whose death is noticed only when it is read again.
    """
    port = int(client.rpartition(":")[2])
    known = _is_established(port, listener)
    while known and matters() and _is_established(port, listener):
        await asyncio.sleep(_LOOK_EVERY_S)
    return known and matters()


def _is_established(client: int, listener: int) -> bool:
    """Whether this machine has an established TCP connection from port ``client`` to port ``listener``.

    When the process has died with data to send, the kernel still sends it, in another state of the connection.
    """
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/self/net", name).read_text().splitlines()[1:]:
                fields = line.split()  # proc(5): 1 and 2 are the addresses, 3 is the state
                if (_port(fields[1]), _port(fields[2]), fields[3]) == (client, listener, _ESTABLISHED):
                    return True
    return False


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
