"""What rules do to frames on their way through the proxy, and which events report it."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from struct import pack
from typing import Any

import pytest

from onceproof.base.errors import UsageError, WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.instruments.proxy import accept
from onceproof.instruments.proxy.frames import Frame
from onceproof.instruments.proxy.loop import ProxyLoop
from onceproof.instruments.proxy.rules import WRITES, Action, Condition, Cut, Rule, describe_pattern, writes_to
from onceproof.stores.postgres.frames import PostgresFrames

from . import wire
from .echo import Echo, Proxied, receive
from .wire import query

#: What a service sends from the start of a connection to the end of the first statement.
_FIRST = wire.WELCOME + wire.complete("SELECT 1") + wire.ready("T")


def test_cut_reset_sends_a_reset(postgres: Proxied) -> None:
    postgres.board.arm(rule := Rule(Condition("commit"), "drop-request", "reset"))
    with postgres.connect() as client:
        client.sendall(wire.startup() + query("COMMIT"))
        with pytest.raises(ConnectionResetError):
            receive(client, 10_000)
    assert rule.hits[0].frame.facts["sql"] == "COMMIT"


@pytest.mark.parametrize("cut", ["close", "silence"])
def test_cut_close_closes_the_connection_and_cut_silence_leaves_it_open(
    postgres: Proxied, echo: Echo, cut: Cut
) -> None:
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


def test_frames_after_a_parked_frame_wait_for_it(postgres: Proxied, echo: Echo) -> None:
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


def test_two_rules_can_park_frames_of_one_connection_in_turn(postgres: Proxied, echo: Echo) -> None:
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


def test_a_frame_can_be_held_before_it_is_dropped(postgres: Proxied, echo: Echo) -> None:
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
def test_a_parked_frame_whose_client_disconnects_is_reported_and_never_delivered(
    postgres: Proxied, echo: Echo, how: str
) -> None:
    postgres.board.arm(rule := Rule(Condition("commit"), "park", name="mine"))
    client = postgres.connect()
    client.sendall(wire.startup() + query("COMMIT"))
    hit = rule.wait_for_hit(10)
    if how == "RST":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
    client.close()
    wait_until("its end to be noticed", lambda: hit.client_left_at, deadline_s=10)
    rule.release()
    wait_until("the link to be forgotten", lambda: not postgres.proxy.links, deadline_s=10)
    assert postgres.kinds() == ["frame.stopped", "frame.abandoned"] and hit.delivered_at is None
    assert postgres.events[1][1]["rule"] == "mine"
    echo.wait_for(wire.startup())


#: A client, given the port and how many bytes it reads of the answer to its first message. If it is killed with part of the answer
#: unread, the kernel resets its connection; otherwise the end of the connection comes after all that it sent.
_SENDS_MUCH = f"""
import socket, sys
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
client.sendall({wire.startup()!r})
for _ in range(int(sys.argv[2])):
    client.recv(1)
client.sendall({query("COMMIT") + query("x")!r} + bytes(40_000_000))
"""


@pytest.mark.parametrize("read", [0, len(wire.startup())])
@pytest.mark.parametrize("late", [False, True])
def test_the_death_of_a_parked_client_is_noticed_though_much_of_its_data_is_unread(
    postgres: Proxied, monkeypatch: pytest.MonkeyPatch, read: int, late: bool
) -> None:
    """The proxy stops reading at 4 MiB, and the end of a connection comes only after all of its data.

    ``late``: the client has died before the proxy looks for the first time.
    """
    dead = threading.Event()

    async def has_died(*args: Any) -> bool:
        if late:
            dead.wait(20)
        return await accept.has_died(*args)

    monkeypatch.setattr("onceproof.instruments.proxy.link.has_died", has_died)
    postgres.board.arm(rule := Rule(Condition("commit"), "park"))
    with subprocess.Popen([sys.executable, "-c", _SENDS_MUCH, str(postgres.proxy.port), str(read)]) as client:
        hit = rule.wait_for_hit(20)
        (link,) = postgres.proxy.links
        wait_until("the proxy to stop reading", lambda: link._parked is not None and link._parked.paused, deadline_s=20)
        assert hit.undeliverable is None
        client.kill()
    dead.set()
    wait_until("the death to be noticed", lambda: hit.undeliverable, deadline_s=10)
    assert hit.undeliverable is not None and "the client closed the connection" in hit.undeliverable


@pytest.mark.parametrize("action", ["park", "drop-request", "drop-answer"])
def test_when_the_service_disconnects_a_parked_frame_is_reported_and_its_client_is_closed(
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
    with pytest.raises(WaitTimeout, match="closed the connection while the frame was parked"):
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


def test_which_frame_is_the_second_does_not_depend_on_the_rule_that_stopped_the_first(
    postgres: Proxied, echo: Echo
) -> None:
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


def test_nearest_can_be_read_while_more_frames_come() -> None:
    """The proxy's thread adds frames while the fault's thread reads them."""
    rule = Rule(Condition("commit", transaction="departures"), "park")
    frame, over = Frame(b"", "commit", {"sql": "COMMIT", "transaction": ["x"] * 50}), threading.Event()

    def pass_by() -> None:
        while not over.is_set():
            assert not rule.takes(frame)
            rule.count("statement")

    passing = threading.Thread(target=pass_by)
    passing.start()
    try:
        wait_until("a frame", lambda: rule.near, deadline_s=10)
        for _ in range(2_000):
            assert "'departures' is not in its transaction" in rule.nearest()
    finally:
        over.set()
        passing.join(10)


def test_a_late_frame_arrives_over_the_old_connection(postgres: Proxied, echo: Echo) -> None:
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


def test_a_rule_that_never_matched_names_the_nearest_frames(postgres: Proxied) -> None:
    rule = Rule(Condition("commit", transaction="departures"), "park")
    postgres.board.arm(rule)
    with postgres.connect() as client:
        client.sendall(wire.startup())
        with pytest.raises(WaitTimeout, match="nothing was seen"):
            rule.wait_for_hit(0.05)
        client.sendall(query("SELECT 1"))
        wait_until("it to be seen", lambda: rule.seen, deadline_s=10)
        with pytest.raises(WaitTimeout, match=r"no commit was seen, only statement \(1\)"):
            rule.wait_for_hit(0.05)
        client.sendall(query("COMMIT"))
        wait_until("it to be near", lambda: rule.near, deadline_s=10)
        with pytest.raises(WaitTimeout, match="'departures' is not in its transaction"):
            rule.wait_for_hit(0.05)
        client.sendall(query("COMMIT"))
        wait_until("a second one like it", lambda: len(rule.near) == 2, deadline_s=10)
        assert rule.nearest().count("'departures' is not in its transaction") == 1
        assert rule.nearest().endswith("is not in its transaction (2 times)")


def test_a_rule_stops_the_nth_frame_and_no_other(postgres: Proxied, echo: Echo) -> None:
    postgres.board.arm(rule := Rule(Condition("commit"), "park", nth=2))
    with postgres.connect() as client:
        client.sendall(wire.startup() + query("COMMIT") * 4)
        rule.wait_for_hit(10)
        rule.release()
        echo.wait_for(wire.startup() + query("COMMIT") * 4)
    assert len(rule.hits) == 1 and rule.fitting == 4


@pytest.mark.parametrize("kind", ["EndTx", "Commit"])
def test_an_unknown_kind_of_frame_is_refused(kind: str) -> None:
    with pytest.raises(UsageError, match=f"no request is named '{kind}'"):
        Condition(kind)


def test_an_invalid_regular_expression_is_refused() -> None:
    with pytest.raises(UsageError, match=r"sql: '\(' is not a regular expression"):
        Condition("commit", sql="(")


@pytest.mark.parametrize("seen", range(len(_FIRST) + 1))
def test_only_the_answer_is_dropped_however_much_of_the_previous_one_has_passed(loop: ProxyLoop, seen: int) -> None:
    """The proxy passes on bytes of the service before it has parsed them, but only while no answer is awaited."""
    first, second = _FIRST, wire.complete("COMMIT") + wire.ready("I")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxied = Proxied(loop, listener.getsockname()[1], "postgres")
        proxied.board.arm(rule := Rule(Condition("commit"), "drop-answer", "close"))
        with proxied.connect() as client:
            service, _ = listener.accept()
            with service:
                service.settimeout(10)
                asked = wire.startup() + query("SELECT 1")
                client.sendall(asked)
                assert receive(service, len(asked)) == asked
                service.sendall(first[:seen])
                assert receive(client, seen) == first[:seen], "the proxy held back a part of it"
                client.sendall(query("COMMIT"))
                assert receive(service, len(query("COMMIT"))) == query("COMMIT")
                service.sendall(first[seen:] + second)
                assert receive(client, len(first) + 1) == first[seen:]
                answer = wait_until("the answer", lambda: rule.hits[0].answer, deadline_s=10)
    assert answer.raw == second
    proxied.proxy.cut()


@pytest.mark.parametrize("size", range(1, len(_FIRST)))
def test_bytes_after_a_parked_frames_answer_stay_complete_and_in_order(loop: ProxyLoop, size: int) -> None:
    """Bytes that were held back while an answer was awaited go before later ones."""
    answer, following = wire.complete("COMMIT") + wire.ready("I"), _FIRST
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxied = Proxied(loop, listener.getsockname()[1], "postgres")
        proxied.board.arm(rule := Rule(Condition("commit"), "park"))
        with proxied.connect() as client:
            service, _ = listener.accept()
            with service:
                service.settimeout(10)
                asked = wire.startup() + query("COMMIT")
                client.sendall(asked)
                rule.wait_for_hit(10)
                rule.release()
                assert receive(service, len(asked)) == asked
                service.sendall(wire.WELCOME + answer + following[:size])
                wait_until("the answer", lambda: rule.hits[0].answer, deadline_s=10)
                service.sendall(following[size:])
                service.shutdown(socket.SHUT_WR)
                whole = wire.WELCOME + answer + following
                assert receive(client, len(whole) + 1) == whole
    proxied.proxy.cut()


@pytest.mark.parametrize(
    ("statement", "writes"),
    [
        ("SELECT last FROM progress WHERE q = 1 FOR UPDATE", False),
        ("select last from progress for\n update skip locked", False),
        ("SELECT last FROM progress FOR NO KEY UPDATE", False),
        ("COPY t TO STDOUT", False),
        ("COPY (SELECT * FROM t) TO STDOUT (FORMAT binary)", False),
        ("COPY t FROM STDIN", True),
        ("copy t from stdin; copy u to stdout", True),
        ("UPDATE t SET a = 1", True),
        ("WITH x AS (SELECT 1 FROM t FOR UPDATE) UPDATE t SET a = 1", True),
        ("INSERT INTO t VALUES (1) ON CONFLICT DO UPDATE SET a = 1", True),
        ("DELETE FROM t", True),
        ("SELECT * FROM updates", False),
    ],
)
def test_a_lock_or_a_copy_to_the_client_is_not_a_write(statement: str, writes: bool) -> None:
    assert bool(re.search(WRITES, statement, re.IGNORECASE)) is writes
    recorded = PostgresFrames().recorded(Frame(b"", "commit", {"transaction": [statement]}))
    assert (recorded is not None) is writes


@pytest.mark.parametrize("table", ["ads", "public.ads", "odd name"])
def test_a_rule_for_writes_to_a_table_is_described_with_the_table(table: str) -> None:
    pattern = writes_to(table)
    assert re.search(pattern, f"insert into {table} values (1)", re.IGNORECASE)
    assert re.search(pattern, f"INSERT INTO {table}_ VALUES (1)", re.IGNORECASE) is None
    assert Rule(Condition("commit", transaction=pattern), "park").describe() == (
        f"commit with a write to {table} in its transaction"
    )
    assert (
        describe_pattern(WRITES) == "a write"
        and re.search(pattern, f"SELECT * FROM {table} FOR UPDATE", re.IGNORECASE) is None
        and describe_pattern("insert.*ads") is None
        and describe_pattern(None) is None
    )
