"""An echo server, and a proxy between it and a client."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

from onceproof.base.waiting import wait_until
from onceproof.instruments.proxy.engine import FrameProxy
from onceproof.instruments.proxy.loop import ProxyLoop, Service, Target
from onceproof.instruments.proxy.rules import Board


class Echo:
    """Sends back the bytes that it receives, and keeps them; closes a connection when the other side does."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.got: list[bytearray] = []
        self.taken: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.taken.append(connection)
                self.got.append(bytearray())
                threading.Thread(target=self._serve, args=(connection, self.got[-1]), daemon=True).start()

    def _serve(self, connection: socket.socket, got: bytearray) -> None:
        with suppress(OSError), connection:
            while data := connection.recv(65536):
                got += data
                connection.sendall(data)

    def wait_for(self, wanted: bytes) -> None:
        """Wait until the newest connection has received exactly these bytes."""
        wait_until(
            f"{wanted!r} to arrive",
            lambda: self.got and bytes(self.got[-1]) == wanted,
            deadline_s=10,
            explain=lambda: repr(self.got[-1:]),
        )

    def hang_up(self) -> None:
        """Close the newest connection."""
        self.taken[-1].shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


class Proxied:
    def __init__(self, loop: ProxyLoop, port: int, service: Service) -> None:
        self.board = Board()
        self.events: list[tuple[str, dict[str, Any]]] = []
        target = Target(service, "127.0.0.1", port)
        self.proxy = FrameProxy(loop, "made-for-a-test", ("127.0.0.1", 0), target, self.board, emit=self.note)
        self.proxy.open()

    def note(self, kind: str, **data: Any) -> None:
        self.events.append((kind, data))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.proxy.port), timeout=10)


def receive(connection: socket.socket, count: int) -> bytes:
    got = bytearray()
    while len(got) < count and (data := connection.recv(65536)):
        got += data
    return bytes(got)
