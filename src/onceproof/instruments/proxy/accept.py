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
#: States of one end of a TCP connection, in the kernel's numbers (tcp_states.h). FIN_WAIT1: its process is gone or has closed the
#: connection, and the kernel still sends its data. CLOSE, CLOSE_WAIT: the other end has reset the connection, or has ended it.
_ESTABLISHED, _FIN_WAIT1, _CLOSE, _CLOSE_WAIT = 1, 4, 7, 8
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


async def has_died(connection: socket.socket, client: str, listener: int, matters: Callable[[], bool]) -> bool:
    """Wait while a client's process exists and it ``matters``; whether the client, ``HOST:PORT``, has died or disconnected.

    For a client from which nothing is read: the end of its connection comes only after all of its data. ``connection``: the
    proxy's end of it. If a client on another machine dies with data still to send, this is noticed only if it resets the connection.
    """
    port = int(client.rpartition(":")[2])
    was_alive = False
    while matters():
        state = _state(port, listener)
        if state == _FIN_WAIT1 or (was_alive and state is None) or _was_ended(connection):
            return matters()
        was_alive = was_alive or state == _ESTABLISHED
        await asyncio.sleep(_LOOK_EVERY_S)
    return False


def _was_ended(connection: socket.socket) -> bool:
    """Whether the other end has reset the connection, or has ended it and all of its data fitted into the buffers."""
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in (_CLOSE, _CLOSE_WAIT)


def _state(client: int, listener: int) -> int | None:
    """The state of the client's end of a TCP connection from port ``client`` to port ``listener``, if it is on this machine."""
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/self/net", name).read_text().splitlines()[1:]:
                fields = line.split()  # proc(5): 1 and 2 are the addresses, 3 is the state
                if (_port(fields[1]), _port(fields[2])) == (client, listener):
                    return int(fields[3], 16)
    return None


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
