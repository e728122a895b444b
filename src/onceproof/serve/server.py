"""The HTTP server of the index: on 127.0.0.1, for this user, and only to look."""

from __future__ import annotations

import errno
import socketserver
import sys
from contextlib import closing
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from pathlib import Path
from typing import Any, BinaryIO

from onceproof.base.errors import EnvironmentProblem
from onceproof.serve.peer import is_foreign
from onceproof.serve.site import Answer, Site, message

HOST = "127.0.0.1"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Server(ThreadingHTTPServer):
    """Serves one folder of runs until it is closed. Raises `EnvironmentProblem` if the port cannot be used; 0: any free port."""

    daemon_threads = True

    def __init__(self, runs_dir: Path, port: int) -> None:
        self.site = Site(runs_dir)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            why = "it is in use" if taken else error.strerror or str(error)
            raise EnvironmentProblem(
                f"cannot serve on port {port} of {HOST}: {why}",
                hint="choose another one with --port N; --port 0 takes any free one",
            ) from None

    def server_bind(self) -> None:
        # Not HTTPServer's, which looks up the name of the host.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.socket.getsockname()[1]

    @property
    def hosts(self) -> list[list[str]]:
        """The Host headers of requests that are meant for this server. Browsers leave out port 80."""
        return [[f"{name}{end}"] for name in (HOST, "localhost") for end in self._ends]

    @property
    def _ends(self) -> tuple[str, ...]:
        return (f":{self.server_port}", "") if self.server_port == 80 else (f":{self.server_port}",)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Browsers close connections in the middle of an answer. Anything else is a bug of onceproof."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "onceproof", ""
    timeout = 30

    def do_GET(self) -> None:
        self._send(self._answer(), with_body=True)

    def do_HEAD(self) -> None:
        self._send(self._answer(), with_body=False)

    def send_error(self, code: int, message_: str | None = None, explain: str | None = None) -> None:
        """For requests that http.server refuses."""
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self._send(message(status, f"{status.phrase}."), with_body=getattr(self, "command", None) != "HEAD")

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _answer(self) -> Answer:
        server, hosts = self.server, self.headers.get_all("Host", [])
        # A name that an attacker lets point to 127.0.0.1 would make their page one of this server's.
        if hosts not in server.hosts:
            return message(403, f"This server answers only at {server.address}")
        if is_foreign(self.client_address, server.server_port):
            return message(403, "This server answers only the user who started it.")
        if not self.path.startswith("/"):
            return message(400, "Bad Request.")
        try:
            return server.site.answer(self.path)
        except Exception:
            server.handle_error(self.request, self.client_address)
            return message(500, "onceproof itself failed. Its output says more.")

    def _send(self, answer: Answer, *, with_body: bool) -> None:
        body = answer.body
        if isinstance(body, bytes):
            self._head(answer, len(body))
            if with_body:
                self.wfile.write(body)
            return
        with closing(body):
            size = body.seek(0, 2)
            body.seek(0)
            self._head(answer, size)
            if with_body:
                _copy(body, self.wfile, size)

    def _head(self, answer: Answer, size: int) -> None:
        self.send_response(answer.status)
        headers = {"Content-Type": answer.kind, "Content-Length": str(size), "Content-Security-Policy": answer.policy}
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = "GET, HEAD"
        for name, value in (headers | _HEADERS).items():
            self.send_header(name, value)
        self.end_headers()


def _copy(file: BinaryIO, to: BufferedIOBase, size: int) -> None:
    """The first ``size`` bytes: a log may grow meanwhile."""
    while size > 0 and (part := file.read(min(size, 65_536))):
        to.write(part)
        size -= len(part)
