"""A socket on which programs of a run report their progress, line by line, and wait for answers."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from onceproof.base.errors import EnvironmentProblem


class LineServer:
    """Serves a Unix socket at a path, which is in a private folder; or a free port of an IPv4 address of this machine.

    ``serve`` handles one connection in its own thread, with the handler's ``rfile``, ``wfile`` and ``connection``, and returns
    at the end of the conversation. At an address it must ask for a secret first: anyone can connect.
    Raises `EnvironmentProblem` if the socket cannot be made.
    """

    def __init__(
        self, place: Path | str, name: str, serve: Callable[[socketserver.StreamRequestHandler], None]
    ) -> None:
        self._place = place

        class Handler(socketserver.StreamRequestHandler):
            # A line must not wait for the answer to the one before. Unix sockets have no such option.
            disable_nagle_algorithm = isinstance(place, str)

            def handle(self) -> None:
                serve(self)

        class Server(socketserver.ThreadingTCPServer):
            address_family = socket.AF_UNIX if isinstance(place, Path) else socket.AF_INET
            daemon_threads = True

        try:
            self._server = Server(str(place) if isinstance(place, Path) else (place, 0), Handler)  # type: ignore[arg-type]
        except OSError as refused:
            raise EnvironmentProblem(
                f"the socket {place} cannot be made: {refused}",
                hint="the path of a unix socket holds some 100 bytes: set TMPDIR to a folder with a shorter name"
                if isinstance(place, Path)
                else "`ip -4 addr` lists the addresses of this machine",
            ) from refused
        self._thread = threading.Thread(target=self._server.serve_forever, name=name, daemon=True)

    @property
    def address(self) -> str:
        """Where clients connect: the path, or HOST:PORT."""
        return str(self._place) if isinstance(self._place, Path) else "{}:{}".format(*self._server.server_address)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Accept no new connections; existing ones stay open. Idempotent."""
        if self._thread.ident is not None:  # never started: shutdown would wait forever for the end of serve_forever
            # Wakes the thread, which looks only every half second whether it is to end.
            with suppress(OSError):  # closed before
                self._server.socket.shutdown(socket.SHUT_RDWR)
            self._server.shutdown()
        self._server.server_close()
        if isinstance(self._place, Path):
            self._place.unlink(missing_ok=True)
