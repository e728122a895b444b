"""The self-test reports bypasses and ineffective cuts; tested with plain sockets, without a stack."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.api import Proxy, Stream
from onceproof.stack.selftest import Guard, bypasses, check_cuts


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def guard(listener: socket.socket, *allowed: int) -> Guard:
    return Guard(listener.getsockname()[1], "the CLIENT listener of kafka-1", frozenset(allowed))


def test_a_direct_connection_is_reported(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()):
        (sentence,) = bypasses([guard(listener)], [os.getpid()])
    assert f"pid {os.getpid()}" in sentence
    port = listener.getsockname()[1]
    assert f"127.0.0.1:{port}, the CLIENT listener of kafka-1, and bypasses its proxy" in sentence


def test_an_allowed_process_and_a_closed_connection_are_not_reported(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()):
        assert bypasses([guard(listener, os.getpid())], [os.getpid()]) == []
    assert bypasses([guard(listener)], [os.getpid()]) == []


def test_the_accepting_process_is_not_reported(listener: socket.socket) -> None:
    child = "import socket, sys; held = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"
    argv = [sys.executable, "-c", child, str(listener.getsockname()[1])]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        accepted, _ = listener.accept()
        with accepted:
            assert bypasses([guard(listener)], [os.getpid()]) == []
            assert len(bypasses([guard(listener)], [os.getpid(), process.pid])) == 1
            process.kill()


def test_a_connection_to_an_address_mapped_into_ipv6_is_reported(listener: socket.socket) -> None:
    with socket.socket(socket.AF_INET6) as client:
        client.connect(("::ffff:127.0.0.1", listener.getsockname()[1]))
        assert len(bypasses([guard(listener)], [os.getpid()])) == 1


def test_a_process_that_has_ended_is_ignored(listener: socket.socket) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert bypasses([guard(listener)], [process.pid]) == []


class ProxyOfSockets:
    """A proxy for `check_cuts`: it listens or not. If ``works`` is False, `cut` and `heal` do nothing."""

    name = "client-1"
    upstream = ""

    def __init__(self, *, listening: bool, works: bool) -> None:
        self._works = works
        self._server = socket.create_server(("127.0.0.1", 0))
        self.listen = f"127.0.0.1:{self._server.getsockname()[1]}"
        if not listening:
            self._server.close()

    def cut(self) -> None:
        if self._works:
            self._server.close()

    def heal(self) -> None:
        if self._works:
            host, _, port = self.listen.rpartition(":")
            self._server = socket.create_server((host, int(port)))

    def add_toxic(self, kind: str, stream: Stream, **attributes: int) -> None:
        raise NotImplementedError


def test_a_cut_without_effect_is_reported() -> None:
    idle: Proxy = ProxyOfSockets(listening=True, works=False)
    with pytest.raises(EnvironmentProblem, match="client-1 was cut, but 127"):
        check_cuts([idle])


def test_a_heal_without_effect_is_reported() -> None:
    dead: Proxy = ProxyOfSockets(listening=False, works=False)
    with pytest.raises(EnvironmentProblem, match="client-1 was healed, but 127"):
        check_cuts([dead])


def test_a_working_proxy_passes_and_is_healed_afterwards() -> None:
    working = ProxyOfSockets(listening=True, works=True)
    check_cuts([working])
    host, _, port = working.listen.rpartition(":")
    socket.create_connection((host, int(port))).close()
