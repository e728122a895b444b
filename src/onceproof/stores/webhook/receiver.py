"""The receiver of webhooks, a program (`python -m`): an HTTP server on loopback that records each delivery before it answers.

A delivery is a ``POST /NAME`` with a JSON object as its body. It becomes a line of ``FOLDER/NAME.jsonl``: a JSON object with
``number`` (from 1, in the order of recording), ``time_us`` (microseconds since 1970), ``key`` (the header ``Idempotency-Key``, or null)
and ``body``, with the digits of its numbers as they were sent. ``GET /NAME`` returns ``{"deliveries": N}``.
"""

from __future__ import annotations

import argparse
import json
import os
import socketserver
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

HOST = "127.0.0.1"
KEY = "Idempotency-Key"
MOST_BYTES = 1 << 20
_IDLE_S = 60.0


class Refused(Exception):
    """A request that is not a delivery. It is not recorded, and answered with ``status``."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class Deliveries:
    """The deliveries of one webhook, in a new file. Thread-safe."""

    def __init__(self, file: Path) -> None:
        """Raises `FileExistsError`: deliveries of an earlier run must not count."""
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._lock = threading.Lock()
        self.count = 0

    def record(self, key: str | None, body: bytes) -> int:
        """Write a delivery to the file. Returns its number. ``body`` is a checked JSON object (`checked`)."""
        with self._lock:
            self.count += 1
            head = json.dumps({"number": self.count, "time_us": time.time_ns() // 1000, "key": key})
            # The body as it came, on one line: within JSON's texts there are no line ends.
            flat = body.replace(b"\r", b" ").replace(b"\n", b" ")
            os.write(self._file, head[:-1].encode() + b', "body": ' + flat + b"}\n")
            return self.count


def checked(body: bytes) -> bytes:
    """``body``, if it is a JSON object. Raises `Refused`."""
    try:
        value = json.loads(body.decode(), parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair: no history could hold it
    except (ValueError, RecursionError) as error:
        raise Refused(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refused(HTTPStatus.BAD_REQUEST, "the body is JSON, but not an object")
    return body


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


class Receiver(ThreadingHTTPServer):
    """Serves ``names`` until it is closed, and records into ``folder``."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, names: list[str], port: int) -> None:
        """Port 0: any free one (`server_port`). Raises `OSError`."""
        self.webhooks = {name: Deliveries(folder / f"{name}.jsonl") for name in names}
        super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        # Not HTTPServer's, which looks up the name of the host.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.socket.getsockname()[1]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    server: Receiver

    def do_POST(self) -> None:  # the name is http.server's
        try:
            webhook = self._webhook()
            body = checked(self._body())
        except Refused as refused:
            # What is left of the body would be read as the next request.
            self.close_connection = True
            self._answer(refused.status, {"error": str(refused)})
            return
        number = webhook.record(self.headers.get(KEY), body)
        self._answer(HTTPStatus.OK, {"delivery": number})

    def do_GET(self) -> None:  # the name is http.server's
        try:
            self._answer(HTTPStatus.OK, {"deliveries": self._webhook().count})
        except Refused as refused:
            self._answer(refused.status, {"error": str(refused)})

    def _webhook(self) -> Deliveries:
        known = self.server.webhooks
        if (found := known.get(self.path.removeprefix("/"))) is None:
            raise Refused(HTTPStatus.NOT_FOUND, f"there is no webhook {self.path}; known: {', '.join(sorted(known))}")
        return found

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "the request has no valid Content-Length")
        if int(length) > MOST_BYTES:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {MOST_BYTES:,} bytes")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise Refused(HTTPStatus.BAD_REQUEST, "the client closed the connection within the body")
        return body

    def _answer(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="existing folder for the deliveries")
    parser.add_argument("--port", type=int, required=True, help=f"port on {HOST}")
    parser.add_argument("names", nargs="+", help="the webhooks")
    args = parser.parse_args()
    with Receiver(args.folder, args.names, args.port) as receiver:
        receiver.serve_forever()


if __name__ == "__main__":
    main()
