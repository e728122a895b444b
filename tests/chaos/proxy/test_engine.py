"""The engine between a client and a plain server of bytes: nothing changes, nobody is kept waiting, everything ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from struct import pack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceproof.chaos.proxy.engine import FrameProxy, ProxyLoop, Service, Target
from onceproof.chaos.proxy.frames import Frame, Reply
from onceproof.chaos.proxy.rules import Action, Board, Condition, Cut, Rule
from onceproof.errors import EnvironmentProblem, UsageError, WaitTimeout
from onceproof.waiting import wait_until

from . import wire
from .wire import query, request, split


class Echo:
    """Sends back what it gets, and keeps it; closes when the other side has ended."""

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
        """That the connection opened last has brought this, and no more."""
        wait_until(
            f"{wanted!r} to arrive",
            lambda: self.got and bytes(self.got[-1]) == wanted,
            deadline_s=10,
            explain=lambda: repr(self.got[-1:]),
        )

    def hang_up(self) -> None:
        """On the connection opened last."""
        self.taken[-1].shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[ProxyLoop]:
    loop = ProxyLoop()
    yield loop
    loop.close()
    assert loop.failures == []


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    with closing(Echo()) as echo:
        yield echo


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


@pytest.fixture
def kafka(loop: ProxyLoop, echo: Echo) -> Iterator[Proxied]:
    proxied = Proxied(loop, echo.port, "kafka")
    yield proxied
    proxied.proxy.cut()


@pytest.fixture
def postgres(loop: ProxyLoop, echo: Echo) -> Iterator[Proxied]:
    proxied = Proxied(loop, echo.port, "postgres")
    yield proxied
    proxied.proxy.cut()


def receive(connection: socket.socket, count: int) -> bytes:
    got = bytearray()
    while len(got) < count and (data := connection.recv(65536)):
        got += data
    return bytes(got)


@settings(max_examples=40)
@given(st.lists(request(), min_size=1, max_size=4), st.binary(max_size=300), st.integers(1, 400), st.booleans())
def test_what_goes_in_comes_out(kafka: Proxied, frames: list[Any], noise: bytes, size: int, armed: bool) -> None:
    stream = b"".join(raw for *_, raw in frames) + noise
    rule = Rule(Condition("EndTxn", transactional_id="^nobody's$"), "drop-request")
    if armed:
        kafka.board.arm(rule)
    with kafka.connect() as client:
        for part in split(stream, size):
            client.sendall(part)
        client.shutdown(socket.SHUT_WR)  # what was kept of an unfinished frame goes out with the end
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


def test_a_reset_is_a_reset(postgres: Proxied) -> None:
    postgres.board.arm(rule := Rule(Condition("commit"), "drop-request", "reset"))
    with postgres.connect() as client:
        client.sendall(wire.startup() + query("COMMIT"))
        with pytest.raises(ConnectionResetError):
            receive(client, 10_000)
    assert rule.hits[0].frame.facts["sql"] == "COMMIT"


@pytest.mark.parametrize("cut", ["close", "silence"])
def test_a_close_is_a_close_and_silence_is_silence(postgres: Proxied, echo: Echo, cut: Cut) -> None:
    postgres.board.arm(rule := Rule(Condition("commit"), "drop-request", cut))
    with postgres.connect() as client:
        client.sendall(wire.startup())
        assert receive(client, len(wire.startup())) == wire.startup()
        client.sendall(query("COMMIT") + query("SELECT 1"))
        rule.wait_for_hit(10)
        if cut == "close":
            assert client.recv(1) == b""
        else:
            client.sendall(query("SELECT 2"))
            client.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.recv(1)
    wait_until("the link to be forgotten", lambda: not postgres.proxy.links, deadline_s=10)
    echo.wait_for(wire.startup())


def test_what_is_behind_a_parked_frame_stays_behind_it(postgres: Proxied, echo: Echo) -> None:
    postgres.board.arm(rule := Rule(Condition("commit"), "park"))
    before, after, later = query("SELECT 1"), query("SELECT 2"), query("SELECT 3")
    whole = wire.startup() + before + query("COMMIT") + after + later
    with postgres.connect() as client:
        client.sendall(wire.startup() + before + query("COMMIT") + after)
        hit = rule.wait_for_hit(10)
        client.sendall(later)
        assert receive(client, len(wire.startup() + before)) == wire.startup() + before
        echo.wait_for(wire.startup() + before)
        assert hit.delivered_at is None
        rule.release()
        echo.wait_for(whole)
    assert hit.delivered_at is not None and hit.delivered_at > hit.seen_at


def test_two_rules_can_park_one_connection_one_after_the_other(postgres: Proxied, echo: Echo) -> None:
    first, second = Rule(Condition("commit"), "park"), Rule(Condition("statement", sql="two"), "park")
    postgres.board.arm(first)
    postgres.board.arm(second)
    with postgres.connect() as client:
        client.sendall(wire.startup() + query("COMMIT") + query("SELECT 'two'") + query("SELECT 3"))
        first.wait_for_hit(10)
        assert second.hits == []
        first.release()
        second.wait_for_hit(10)
        echo.wait_for(wire.startup() + query("COMMIT"))
        second.release()
        echo.wait_for(wire.startup() + query("COMMIT") + query("SELECT 'two'") + query("SELECT 3"))


def test_a_loss_can_be_held_until_its_state_was_looked_at(postgres: Proxied, echo: Echo) -> None:
    postgres.board.arm(rule := Rule(Condition("commit"), "drop-request", "reset", hold=True))
    with postgres.connect() as client:
        client.sendall(wire.startup())
        receive(client, len(wire.startup()))
        client.sendall(query("COMMIT") + query("SELECT 1"))
        hit = rule.wait_for_hit(10)
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        client.settimeout(10)
        assert hit.cut_at is None
        rule.release()
        with pytest.raises(ConnectionResetError):
            receive(client, 1)
    echo.wait_for(wire.startup())
    assert hit.cut_at is not None and hit.delivered_at is None


@pytest.mark.parametrize("how", ["FIN", "RST"])
def test_a_client_that_leaves_while_its_frame_is_parked_is_told_and_never_delivered(
    postgres: Proxied, echo: Echo, how: str
) -> None:
    postgres.board.arm(rule := Rule(Condition("commit"), "park", name="mine"))
    client = postgres.connect()
    client.sendall(wire.startup() + query("COMMIT"))
    hit = rule.wait_for_hit(10)
    if how == "RST":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
    client.close()
    wait_until("its leaving to be noticed", lambda: hit.client_left_at, deadline_s=10)
    rule.release()
    wait_until("the link to be forgotten", lambda: not postgres.proxy.links, deadline_s=10)
    assert postgres.kinds() == ["frame.stopped", "frame.abandoned"] and hit.delivered_at is None
    assert postgres.events[1][1]["rule"] == "mine"
    echo.wait_for(wire.startup())


@pytest.mark.parametrize("action", ["park", "drop-request", "drop-answer"])
def test_a_service_that_goes_while_a_frame_for_it_is_parked_is_told_and_the_client_let_go(
    postgres: Proxied, echo: Echo, action: Action
) -> None:
    postgres.board.arm(rule := Rule(Condition("commit"), action, hold=True))
    with postgres.connect() as client:
        client.sendall(wire.startup() + query("COMMIT"))
        hit = rule.wait_for_hit(10)
        assert receive(client, len(wire.startup())) == wire.startup()
        echo.hang_up()
        assert client.recv(1) == b""
    rule.release()
    with pytest.raises(WaitTimeout, match="closed the connection while it was parked"):
        rule.wait_for_answer(hit, 10)
    wait_until("the link to be forgotten", lambda: not postgres.proxy.links, deadline_s=10)
    assert postgres.kinds() == ["frame.stopped", "frame.undeliverable"]
    assert hit.delivered_at is None and hit.cut_at is None


def test_silence_ends_when_the_rule_is_disarmed(postgres: Proxied, echo: Echo) -> None:
    postgres.board.arm(rule := Rule(Condition("commit"), "drop-request", "silence"))
    with postgres.connect() as client:
        client.sendall(wire.startup())
        assert receive(client, len(wire.startup())) == wire.startup()
        client.sendall(query("COMMIT"))
        rule.wait_for_hit(10)
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        client.settimeout(10)
        postgres.board.disarm(rule)
        assert client.recv(1) == b"", "a client without a time-out would wait for ever"
    wait_until("the link to be forgotten", lambda: not postgres.proxy.links, deadline_s=10)


def test_which_frame_is_the_second_does_not_depend_on_who_took_the_first(postgres: Proxied, echo: Echo) -> None:
    first, second, never = (Rule(Condition("commit"), "park", nth=nth) for nth in (1, 2, 1))
    for rule in (first, second, never):
        postgres.board.arm(rule)
    stream = wire.startup() + query("COMMIT AND CHAIN") + query("COMMIT")
    with postgres.connect() as client:
        client.sendall(stream)
        assert first.wait_for_hit(10).frame.facts["sql"] == "COMMIT AND CHAIN"
        first.release()
        assert second.wait_for_hit(10).frame.facts["sql"] == "COMMIT"
        second.release()
        echo.wait_for(stream)
    assert never.hits == [] and "another rule stopped it" in never.nearest()


def test_what_was_near_can_be_told_while_more_comes() -> None:
    """The proxy's thread adds to what the fault's thread reads out."""
    rule = Rule(Condition("commit", transaction="departures"), "park")
    frame, over = Frame(b"", "commit", {"sql": "COMMIT", "transaction": ["x"] * 50}), threading.Event()

    def pass_by() -> None:
        while not over.is_set():
            assert not rule.takes(frame)
            rule.saw("statement")

    passing = threading.Thread(target=pass_by)
    passing.start()
    try:
        wait_until("a frame", lambda: rule.near, deadline_s=10)
        for _ in range(2_000):
            assert "'departures' is not in its transaction" in rule.nearest()
    finally:
        over.set()
        passing.join(10)


def test_a_late_frame_comes_over_the_old_connection(postgres: Proxied, echo: Echo) -> None:
    postgres.board.arm(rule := Rule(Condition("commit"), "late", "reset"))
    with postgres.connect() as client:
        client.sendall(wire.startup())
        receive(client, len(wire.startup()))
        client.sendall(query("COMMIT"))
        with pytest.raises(ConnectionResetError):
            receive(client, 10_000)
    echo.wait_for(wire.startup())
    rule.release()
    echo.wait_for(wire.startup() + query("COMMIT"))


def test_nobody_upstream_means_reset_and_a_cut_means_refused(loop: ProxyLoop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    proxied = Proxied(loop, port, "kafka")
    ear: list[Reply] = []
    proxied.board.listen(ear)
    with pytest.raises(ConnectionResetError), proxied.connect() as client:
        receive(client, 1)
    assert [(reply.what, reply.code, reply.road) for reply in ear] == [("connection", "refused", proxied.proxy.name)]
    proxied.board.unlisten(ear)
    proxied.proxy.cut()
    with pytest.raises(ConnectionRefusedError):
        proxied.connect()
    proxied.proxy.open()
    with pytest.raises(ConnectionResetError), proxied.connect() as client:
        receive(client, 1)
    target = Target("kafka", "127.0.0.1", port)
    assert len(ear) == 1, "nobody listened any more"
    other = FrameProxy(loop, "second", ("127.0.0.1", proxied.proxy.port), target, Board())
    with pytest.raises(EnvironmentProblem, match=f"second cannot listen on 127.0.0.1:{proxied.proxy.port}"):
        other.open()
    proxied.proxy.cut()


def test_who_is_turned_away_is_told_of_and_a_connection_that_rests_stands(postgres: Proxied, echo: Echo) -> None:
    ear: list[Reply] = []
    postgres.board.listen(ear)
    with postgres.connect() as used, postgres.connect() as resting:
        for client in (used, resting):
            client.sendall(wire.startup())
            assert receive(client, len(wire.startup())) == wire.startup()
        postgres.proxy.turn_away()
        with pytest.raises(ConnectionResetError), postgres.connect() as fresh:
            receive(fresh, 1)
        used.sendall(query("SELECT 1"))
        with pytest.raises(ConnectionResetError):
            receive(used, 1)
        assert [reply.code for reply in ear] == ["refused", "broken"]
        postgres.proxy.open()
        resting.sendall(query("SELECT 1"))
        assert receive(resting, len(query("SELECT 1"))) == query("SELECT 1")
    assert len(ear) == 2


def test_tls_is_refused_and_told_once(kafka: Proxied) -> None:
    for _ in range(2):
        with kafka.connect() as client:
            client.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100))
            with suppress(ConnectionResetError):
                assert receive(client, 1) == b""
    (sentence,) = kafka.proxy.refusals
    assert "security.protocol" in sentence and kafka.kinds() == ["warning"]


def test_a_stranger_passes_and_is_told(kafka: Proxied) -> None:
    with kafka.connect() as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert receive(client, 18) == b"GET / HTTP/1.1\r\n\r\n"
    assert "does not speak kafka" in kafka.events[0][1]["message"]


def test_what_could_not_be_written_down_is_told(echo: Echo) -> None:
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
    assert failure.startswith("made-for-a-test could not write down warning") and "No space left" in failure


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


def test_a_rule_that_never_matched_names_the_nearest_frames(postgres: Proxied) -> None:
    rule = Rule(Condition("commit", transaction="departures"), "park")
    postgres.board.arm(rule)
    with postgres.connect() as client:
        client.sendall(wire.startup())
        with pytest.raises(WaitTimeout, match="nothing was seen"):
            rule.wait_for_hit(0.05)
        client.sendall(query("SELECT 1"))
        wait_until("it to be seen", lambda: rule.seen, deadline_s=10)
        with pytest.raises(WaitTimeout, match=r"no commit at all; seen were statement \(1\)"):
            rule.wait_for_hit(0.05)
        client.sendall(query("COMMIT"))
        wait_until("it to be near", lambda: rule.near, deadline_s=10)
        with pytest.raises(WaitTimeout, match="'departures' is not in its transaction"):
            rule.wait_for_hit(0.05)


def test_the_nth_and_no_more(postgres: Proxied, echo: Echo) -> None:
    postgres.board.arm(rule := Rule(Condition("commit"), "park", nth=2))
    with postgres.connect() as client:
        client.sendall(wire.startup() + query("COMMIT") * 4)
        rule.wait_for_hit(10)
        rule.release()
        echo.wait_for(wire.startup() + query("COMMIT") * 4)
    assert len(rule.hits) == 1 and rule.fitting == 4


@pytest.mark.parametrize("kind", ["EndTx", "Commit"])
def test_an_unknown_kind_of_frame_is_refused_with_what_is_near(kind: str) -> None:
    with pytest.raises(UsageError, match=f"no request is named '{kind}'"):
        Condition(kind)


def test_a_bad_expression_is_refused() -> None:
    with pytest.raises(UsageError, match=r"sql: '\(' is no regular expression"):
        Condition("commit", sql="(")
