"""The proxy between a client and an echo server: it changes no byte, delays no client, and closes all connections at its end."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from struct import pack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.waiting import wait_until
from onceproof.instruments.proxy.engine import FrameProxy
from onceproof.instruments.proxy.frames import Reply
from onceproof.instruments.proxy.loop import ProxyLoop, Target
from onceproof.instruments.proxy.rules import Board, Condition, Rule

from . import wire
from .echo import Echo, Proxied, receive
from .wire import query, request, split


@settings(max_examples=40)
@given(st.lists(request(), min_size=1, max_size=4), st.binary(max_size=300), st.integers(1, 400), st.booleans())
def test_no_byte_changes_on_the_way(kafka: Proxied, frames: list[Any], noise: bytes, size: int, armed: bool) -> None:
    stream = b"".join(raw for *_, raw in frames) + noise
    rule = Rule(Condition("EndTxn", transactional_id="^nobody's$"), "drop-request")
    if armed:
        kafka.board.arm(rule)
    with kafka.connect() as client:
        for part in split(stream, size):
            client.sendall(part)
        client.shutdown(socket.SHUT_WR)  # the end sends out the held bytes of an incomplete frame
        assert receive(client, len(stream) + 1) == stream
    kafka.board.disarm(rule)


def test_a_large_stream_passes_a_slow_reader_in_bounded_memory(kafka: Proxied) -> None:
    frame = pack(">ihhi", 1_000_000 - 4, 0, 11, 1) + bytes(1_000_000 - 12)
    with kafka.connect() as client:
        sender = threading.Thread(target=lambda: [client.sendall(frame) for _ in range(40)], daemon=True)
        sender.start()
        wait_until("the sender to be held up", lambda: _stalled(kafka), deadline_s=20)
        assert sender.is_alive()
        assert len(receive(client, 40_000_000)) == 40_000_000
        sender.join(10)


def _stalled(proxied: Proxied) -> bool:
    return any(
        side.transport is not None and not side.transport.is_reading()
        for link in list(proxied.proxy.links)
        for side in (link.client, link.server)
    )


def test_clients_are_reset_without_a_service_and_refused_during_a_cut(loop: ProxyLoop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    proxied = Proxied(loop, port, "kafka")
    heard: list[Reply] = []
    proxied.board.listen(heard)
    with pytest.raises(ConnectionResetError), proxied.connect() as client:
        receive(client, 1)
    assert [(reply.what, reply.code, reply.route) for reply in heard] == [("connection", "refused", proxied.proxy.name)]
    proxied.board.unlisten(heard)
    proxied.proxy.cut()
    with pytest.raises(ConnectionRefusedError):
        proxied.connect()
    proxied.proxy.open()
    with pytest.raises(ConnectionResetError), proxied.connect() as client:
        receive(client, 1)
    target = Target("kafka", "127.0.0.1", port)
    assert len(heard) == 1, "a reply arrived after unlisten"
    other = FrameProxy(loop, "second", ("127.0.0.1", proxied.proxy.port), target, Board())
    with pytest.raises(EnvironmentProblem, match=f"second cannot listen on 127.0.0.1:{proxied.proxy.port}"):
        other.open()
    proxied.proxy.cut()


def test_rejected_connections_are_reported_and_an_idle_connection_stays_open(postgres: Proxied, echo: Echo) -> None:
    heard: list[Reply] = []
    postgres.board.listen(heard)
    with postgres.connect() as used, postgres.connect() as idle:
        for client in (used, idle):
            client.sendall(wire.startup())
            assert receive(client, len(wire.startup())) == wire.startup()
        postgres.proxy.reject_clients()
        with pytest.raises(ConnectionResetError), postgres.connect() as fresh:
            receive(fresh, 1)
        used.sendall(query("INSERT INTO t VALUES (1)"))
        with pytest.raises(ConnectionResetError):
            receive(used, 1)
        assert [reply.code for reply in heard] == ["refused", "broken"]
        postgres.proxy.open()
        idle.sendall(query("SELECT 1"))
        assert receive(idle, len(query("SELECT 1"))) == query("SELECT 1")
    assert len(heard) == 2


def test_a_connection_that_is_only_checked_or_closed_is_not_reported_as_refused(postgres: Proxied) -> None:
    heard: list[Reply] = []
    postgres.board.listen(heard)
    with postgres.connect() as checked, postgres.connect() as closed:
        for client in (checked, closed):
            client.sendall(wire.startup())
            assert receive(client, len(wire.startup())) == wire.startup()
        postgres.proxy.reject_clients()
        for client, sent in ((checked, query("SELECT 1")), (closed, b"X\0\0\0\4")):
            client.sendall(sent)
            with pytest.raises(ConnectionResetError):
                receive(client, 1)
    assert [reply.code for reply in heard] == ["idle", "idle"]


def test_only_clients_that_need_an_answer_are_noted(postgres: Proxied, kafka: Proxied) -> None:
    with postgres.connect() as idle, postgres.connect() as checking, postgres.connect() as writing:
        for client in (idle, checking, writing):
            client.sendall(wire.startup())
            assert receive(client, len(wire.startup())) == wire.startup()
            client.sendall(query("SELECT 1"))
            receive(client, len(query("SELECT 1")))
        for link in list(postgres.proxy.links):  # an echo ends neither the login nor a statement
            link._conversation._ends.clear()  # type: ignore[attr-defined]
        postgres.proxy.note_requests()
        assert postgres.proxy.requesting == set()
        for client, sql in ((checking, "SELECT 1"), (writing, "INSERT INTO t VALUES (1)")):
            client.sendall(query(sql))
            receive(client, len(query(sql)))
        with postgres.connect() as fresh:
            fresh.sendall(wire.startup())
            receive(fresh, len(wire.startup()))
            peers = {f"127.0.0.1:{client.getsockname()[1]}" for client in (writing, fresh)}
        assert postgres.proxy.requesting == peers
    with kafka.connect() as one:
        one.sendall(b"\0")
        wait_until("the byte to pass", lambda: any(link._asked_last for link in list(kafka.proxy.links)), deadline_s=10)
        kafka.proxy.note_requests()
        assert kafka.proxy.requesting == {f"127.0.0.1:{one.getsockname()[1]}"}, "it waits for an answer already"


def test_tls_is_refused_and_reported_once(kafka: Proxied) -> None:
    for _ in range(2):
        with kafka.connect() as client:
            client.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100))
            with suppress(ConnectionResetError):
                assert receive(client, 1) == b""
    (sentence,) = kafka.proxy.refusals
    assert "security.protocol" in sentence and kafka.kinds() == ["warning"]


def test_a_client_of_another_protocol_passes_and_is_reported(kafka: Proxied) -> None:
    with kafka.connect() as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert receive(client, 18) == b"GET / HTTP/1.1\r\n\r\n"
    assert "does not speak kafka" in kafka.events[0][1]["message"]


def test_a_client_that_resets_before_it_is_accepted_is_forgotten(kafka: Proxied, loop: ProxyLoop) -> None:
    before, held, go_on = [*loop.failures], threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go_on.wait(10)

    loop.soon(hold)
    assert held.wait(10)  # the loop accepts nobody meanwhile
    for _ in range(5):
        client = kafka.connect()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        client.close()
    go_on.set()
    with kafka.connect() as client:
        client.sendall(b"x" * 10)
        client.shutdown(socket.SHUT_WR)
        assert receive(client, 10) == b"x" * 10
    wait_until("no connection to be left", lambda: not kafka.proxy.links, deadline_s=10)
    assert loop.failures == before


def test_an_event_that_could_not_be_recorded_is_a_failure_of_the_loop(echo: Echo) -> None:
    def full(_kind: str, **_data: Any) -> None:
        raise OSError(28, "No space left on device")

    loop = ProxyLoop()
    target = Target("kafka", "127.0.0.1", echo.port)
    proxy = FrameProxy(loop, "made-for-a-test", ("127.0.0.1", 0), target, Board(), emit=full)
    proxy.open()
    try:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert receive(client, 18) == b"GET / HTTP/1.1\r\n\r\n"
    finally:
        loop.close()
    (failure,) = loop.failures
    assert failure.startswith("made-for-a-test could not record the event warning") and "No space left" in failure


def test_closing_ends_listeners_and_connections(echo: Echo) -> None:
    loop = ProxyLoop()
    proxied = Proxied(loop, echo.port, "kafka")
    with proxied.connect() as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        receive(client, 18)
        loop.close()
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            proxied.connect()
    loop.close()  # idempotent
    assert loop.failures == []
