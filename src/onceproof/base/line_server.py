"""A unix socket at which programs that we started say, line by line, where they are, and wait."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable
from pathlib import Path


class LineServer:
    """Serves the socket at ``path`` (in a private folder, short enough for a unix socket address), each connection in a thread
    of its own: ``serve`` gets its ``rfile``, ``wfile`` and ``connection``, and returns when nothing more is to be said."""

    def __init__(self, path: Path, name: str, serve: Callable[[socketserver.StreamRequestHandler], None]) -> None:
        self.path = path

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                serve(self)

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

        self._server = Server(str(path), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop serving; who is connected stays so. Idempotent."""
        if self._thread.ident is not None:  # else nobody would answer: shutdown waits for the end of serve_forever
            self._server.shutdown()
        self._server.server_close()
        self.path.unlink(missing_ok=True)
