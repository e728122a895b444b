"""A small server that answers like a schema registry: Confluent's REST interface on loopback, as far as the tests need it.

It starts at once. `test_registry_real` tries the client against Apicurio, a real registry.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class RegistryServer:
    """What is registered, and what the server was asked."""

    url: str = ""
    schemas: list[dict[str, Any]] = field(default_factory=list)
    """Schema id - 1 -> the answer for it."""
    subjects: dict[str, list[int]] = field(default_factory=dict)
    credentials: tuple[str, str] | None = None
    refuses: bool = False
    """Whether each new schema is incompatible with the one before."""
    invalid: bool = False
    """Whether each new schema is none to this server."""
    requests: list[str] = field(default_factory=list)

    def add(self, subject: str, schema: str, kind: str = "AVRO", references: list[dict[str, Any]] | None = None) -> int:
        made: dict[str, Any] = {"schema": schema} | ({} if kind == "AVRO" else {"schemaType": kind})
        made |= {"references": references} if references else {}
        if made not in self.schemas:
            self.schemas.append(made)
        number = self.schemas.index(made) + 1
        versions = self.subjects.setdefault(subject, [])
        versions += [] if number in versions else [number]
        return number

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        parts = path.strip("/").split("/")
        if parts == ["subjects"]:
            return 200, list(self.subjects)
        if parts[:2] == ["schemas", "ids"]:
            number = int(parts[2])
            if not 0 < number <= len(self.schemas):
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, self.schemas[number - 1]
        if parts[0] == "subjects" and parts[2] == "versions" and method == "POST":
            if self.invalid:
                return 422, {"error_code": 42201, "message": "Invalid schema"}
            if self.refuses:
                return 409, {
                    "error_code": 409,
                    "message": "Schema being registered is incompatible: READER_FIELD_MISSING",
                }
            return 200, {"id": self.add(parts[1], body["schema"], body.get("schemaType", "AVRO"))}
        if parts[0] == "subjects" and parts[2] == "versions":
            number = self.subjects[parts[1]][int(parts[3]) - 1]
            return 200, {"subject": parts[1], "id": number, **self.schemas[number - 1]}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


@contextmanager
def registry_server(credentials: tuple[str, str] | None = None) -> Iterator[RegistryServer]:
    state = RegistryServer(credentials=credentials)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET", {})

        def do_POST(self) -> None:
            self._answer("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, method: str, body: dict[str, Any]) -> None:
            state.requests.append(f"{method} {self.path}")
            wanted = None
            if state.credentials is not None:
                wanted = "Basic " + base64.b64encode(":".join(state.credentials).encode()).decode()
            if wanted is not None and self.headers.get("Authorization") != wanted:
                status, content = 401, {"error_code": 401, "message": "Unauthorized"}
            else:
                status, content = state.answer(method, self.path, body)
            written = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(written)))
            self.end_headers()
            self.wfile.write(written)

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
