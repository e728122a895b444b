"""A unix socket on which programs of a run report their progress, line by line, and wait for answers."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from onceproof.base.errors import EnvironmentProblem


class LineServer:
    """Serves the socket at ``path``, which is in a private folder.

    ``serve`` handles one connection in its own thread, with the handler's ``rfile``, ``wfile`` and ``connection``, and returns
    at the end of the conversation. Raises `EnvironmentProblem` if the socket cannot be made.
    """

    def __init__(self, path: Path, name: str, serve: Callable[[socketserver.StreamRequestHandler], None]) -> None:
        self.path = path

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                serve(self)

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

        try:
            self._server = Server(str(path), Handler)
        except OSError as refused:
            raise EnvironmentProblem(
                f"the socket {path} cannot be made: {refused}",
                hint="the path of a unix socket holds some 100 bytes: set TMPDIR to a folder with a shorter name",
            ) from refused
        self._thread = threading.Thread(target=self._server.serve_forever, name=name, daemon=True)

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
        self.path.unlink(missing_ok=True)
