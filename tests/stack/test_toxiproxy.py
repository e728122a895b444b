"""Proxies cut, heal and apply toxics; a wedged one is recreated in its wanted state."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from onceproof.base.errors import EnvironmentProblem, ServiceFailed, UsageError
from onceproof.base.waiting import wait_until
from onceproof.stack.fetch.components import ensure
from onceproof.stack.processes.owner import Owner, Service
from onceproof.stack.processes.ports import lease
from onceproof.stack.toxiproxy import server as toxiproxy
from onceproof.stack.toxiproxy.server import ToxiproxyServer


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEPROOF_STATE_DIR", str(tmp_path / "state"))


class FakeApi(BaseHTTPRequestHandler):
    """Answers like Toxiproxy, except to the requests (``METHOD path``) in ``answers``; records every request."""

    seen: ClassVar[list[tuple[str, Any]]]
    answers: ClassVar[dict[str, tuple[int, bytes]]]

    def do_GET(self) -> None:
        self._answer("GET", 200, b'{"version": "2.12.0"}')

    def do_POST(self) -> None:
        self._answer("POST", 200, b"{}")

    def do_DELETE(self) -> None:
        self._answer("DELETE", 204, b"")

    def _answer(self, method: str, status: int, body: bytes) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = f"{method} {self.path}"
        self.seen.append((request, json.loads(sent) if sent else None))
        # Each answer is given once: a wedged proxy works again after it was recreated.
        status, body = self.answers.pop(request, (status, body))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


def fake_server(emit: toxiproxy.Emit) -> Iterator[tuple[ToxiproxyServer, type[FakeApi]]]:
    api = type("Api", (FakeApi,), {"seen": [], "answers": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), api) as http:
        threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        service = cast("Service", SimpleNamespace(log_tail=lambda: ""))
        yield ToxiproxyServer(service, http.server_port, emit), api
        http.shutdown()


@pytest.fixture
def events() -> list[tuple[str, dict[str, Any]]]:
    return []


@pytest.fixture
def fake(events: list[tuple[str, dict[str, Any]]]) -> Iterator[tuple[ToxiproxyServer, type[FakeApi]]]:
    yield from fake_server(lambda kind, **data: events.append((kind, data)))


def test_heal_removes_toxics_before_it_enables_and_is_idempotent(fake: tuple[ToxiproxyServer, type[FakeApi]]) -> None:
    server, api = fake
    proxy = server.create("pg", 1, 2)
    proxy.cut()
    proxy.add_toxic("timeout", "downstream", timeout=0)
    api.seen.clear()
    proxy.heal()
    assert api.seen == [
        ("DELETE /proxies/pg/toxics/timeout_downstream", None),
        ("POST /proxies/pg", {"enabled": True}),
    ]
    api.seen.clear()
    proxy.heal()
    assert api.seen == []


def test_a_wedged_proxy_is_recreated_with_all_its_toxics_and_an_event_is_emitted(
    fake: tuple[ToxiproxyServer, type[FakeApi]], events: list[tuple[str, dict[str, Any]]]
) -> None:
    server, api = fake
    proxy = server.create("pg", 1, 2)
    proxy.add_toxic("latency", "upstream", latency=5)
    api.answers["POST /proxies/pg/toxics"] = (503, b"not JSON")
    api.seen.clear()
    proxy.add_toxic("timeout", "downstream", timeout=0)
    assert [request for request, _ in api.seen] == [
        "POST /proxies/pg/toxics",
        "DELETE /proxies/pg",
        "POST /proxies",
        "POST /proxies/pg/toxics",
        "POST /proxies/pg/toxics",
    ]
    assert [body["name"] for _, body in api.seen[3:]] == ["latency_upstream", "timeout_downstream"]
    assert events == [
        (
            "harness.proxy-recreated",
            {"proxy": "pg", "doing": "add timeout_downstream", "why": "503 Service Unavailable"},
        )
    ]


def test_a_proxy_that_wedges_during_a_cut_is_recreated_cut(fake: tuple[ToxiproxyServer, type[FakeApi]]) -> None:
    server, api = fake
    proxy = server.create("pg", 1, 2)
    api.answers["POST /proxies/pg"] = (503, b"")
    proxy.cut()
    created = [body for request, body in api.seen if request == "POST /proxies"]
    assert [body["enabled"] for body in created] == [True, False]


def test_a_missing_answer_counts_as_wedged(
    events: list[tuple[str, dict[str, Any]]],
    fake: tuple[ToxiproxyServer, type[FakeApi]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, api = fake
    proxy = server.create("pg", 1, 2)
    release = threading.Event()
    answer = api._answer

    def hang_once(self: FakeApi, method: str, status: int, body: bytes) -> None:
        monkeypatch.setattr(api, "_answer", answer)
        release.wait(30)
        self.close_connection = True

    monkeypatch.setattr(toxiproxy, "_HTTP_TIMEOUT_S", 0.2)
    monkeypatch.setattr(api, "_answer", hang_once)
    proxy.add_toxic("timeout", "upstream", timeout=0)
    release.set()
    assert [kind for kind, _ in events] == ["harness.proxy-recreated"]
    assert events[0][1]["why"] == "no answer within 0.2 s"


def test_two_servers_can_be_used_in_one_process(fake: tuple[ToxiproxyServer, type[FakeApi]]) -> None:
    one, one_api = fake
    others = fake_server(lambda _kind, **_data: None)
    other, other_api = next(others)
    one.create("a", 1, 2)
    other.create("b", 3, 4)
    one.create("c", 5, 6)
    assert [body["name"] for _, body in one_api.seen] == ["a", "c"]
    assert [body["name"] for _, body in other_api.seen] == ["b"]
    assert next(others, None) is None


def test_calls_do_not_use_the_http_proxy_of_the_environment(
    fake: tuple[ToxiproxyServer, type[FakeApi]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert fake[0].version() == "2.12.0"


def test_the_error_for_a_refused_request_quotes_it_and_the_toxic_is_forgotten(
    fake: tuple[ToxiproxyServer, type[FakeApi]],
) -> None:
    server, api = fake
    proxy = server.create("pg", 1, 2)
    api.answers["POST /proxies/pg/toxics"] = (400, b'{"error": "bad request body: unknown toxic type: timout"}')
    with pytest.raises(UsageError, match="unknown toxic type: timout"):
        proxy.add_toxic("timout", "downstream", timeout=0)
    api.seen.clear()
    proxy.heal()
    assert api.seen == []
    api.answers["POST /proxies"] = (500, b'{"error": "listen tcp 127.0.0.1:7: bind: address already in use"}')
    with pytest.raises(EnvironmentProblem, match=r"127\.0\.0\.1:7: bind: address already in use"):
        server.create("taken", 7, 8)


def test_a_call_to_a_server_that_is_gone_raises_service_failed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    service = cast("Service", SimpleNamespace(log_tail=lambda: "panic: something"))
    with pytest.raises(ServiceFailed, match="panic: something"):
        ToxiproxyServer(service, port, lambda _kind, **_data: None).version()


def test_the_error_for_a_binary_that_ends_at_once_has_its_log(tmp_path: Path) -> None:
    binary = tmp_path / "toxiproxy-server"
    binary.write_text("#!/bin/sh\necho cannot go on\nexit 3\n")
    binary.chmod(0o755)
    with Owner() as owner, pytest.raises(ServiceFailed, match=r"(?s)ended with code 3.*cannot go on"):
        ToxiproxyServer.start(owner, binary, tmp_path / "log", 1)


# --- the real server ---


@pytest.fixture
def real(
    tmp_path: Path, events: list[tuple[str, dict[str, Any]]]
) -> Iterator[tuple[ToxiproxyServer, socket.socket, toxiproxy.ToxiproxyProxy]]:
    """A server, a listening socket, and a proxy in front of that."""
    with Owner() as owner, socket.create_server(("127.0.0.1", 0)) as upstream:
        port, listen = lease(owner, 2)
        server = ToxiproxyServer.start(
            owner,
            ensure(progress=False).toxiproxy_server,
            tmp_path / "toxiproxy.log",
            port,
            lambda kind, **data: events.append((kind, data)),
        )
        yield server, upstream, server.create("echo", listen, upstream.getsockname()[1])


def connect(proxy: toxiproxy.ToxiproxyProxy) -> socket.socket:
    host, port = proxy.listen.split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def passes(proxy: toxiproxy.ToxiproxyProxy, upstream: socket.socket) -> bool:
    """Whether bytes get from a client through the proxy to the server and back."""
    with suppress(OSError), connect(proxy) as client:
        client.sendall(b"ping")
        accepted, _ = upstream.accept()
        with accepted:
            accepted.sendall(accepted.recv(4))
            return client.recv(4) == b"ping"
    return False


@pytest.mark.real
@pytest.mark.services
def test_cut_closes_and_refuses_connections_and_heal_accepts_them_again(
    real: tuple[ToxiproxyServer, socket.socket, toxiproxy.ToxiproxyProxy],
) -> None:
    server, upstream, proxy = real
    assert server.version() == "2.12.0"
    with connect(proxy) as client:
        accepted, _ = upstream.accept()
        proxy.cut()
        assert client.recv(1) == b""
        accepted.close()
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.heal()
    assert passes(proxy, upstream)


@pytest.mark.real
@pytest.mark.services
def test_limit_data_downstream_passes_the_request_and_drops_the_answer(
    real: tuple[ToxiproxyServer, socket.socket, toxiproxy.ToxiproxyProxy],
) -> None:
    _, upstream, proxy = real
    proxy.add_toxic("limit_data", "downstream", bytes=0)
    proxy.add_toxic("limit_data", "downstream", bytes=0)
    with connect(proxy) as client:
        accepted, _ = upstream.accept()
        client.sendall(b"ping")
        assert accepted.recv(4) == b"ping"
        accepted.sendall(b"pong")
        assert client.recv(4) == b""
        accepted.close()
    proxy.heal()
    assert passes(proxy, upstream)


@pytest.mark.real
@pytest.mark.services
def test_a_toxic_for_a_client_that_does_not_read_recreates_the_proxy(
    real: tuple[ToxiproxyServer, socket.socket, toxiproxy.ToxiproxyProxy], events: list[tuple[str, dict[str, Any]]]
) -> None:
    _, upstream, proxy = real
    with connect(proxy) as client:
        accepted, _ = upstream.accept()
        with closing(accepted):
            accepted.setblocking(False)
            stuck = 0

            def buffers_are_full() -> bool:
                nonlocal stuck
                try:
                    accepted.send(b"x" * 65536)
                except BlockingIOError:
                    stuck += 1
                else:
                    stuck = 0
                return stuck >= 5

            wait_until("the buffers to the client to be full", buffers_are_full, deadline_s=60, every_s=0.01)
            proxy.add_toxic("timeout", "downstream", timeout=0)
            assert [data["proxy"] for kind, data in events if kind == "harness.proxy-recreated"] == ["echo"]
            client.close()
    proxy.heal()
    assert passes(proxy, upstream)


@pytest.mark.real
@pytest.mark.services
def test_the_error_for_a_listen_port_in_use_names_it(
    real: tuple[ToxiproxyServer, socket.socket, toxiproxy.ToxiproxyProxy],
) -> None:
    server, upstream, _ = real
    port = upstream.getsockname()[1]
    with pytest.raises(EnvironmentProblem, match=f"{port}: bind: address already in use"):
        server.create("second", port, port)
