"""A driver that is fenced at the checkpoint gate, over its socket: the tests send what a driver's JVM sends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceproof.base.waiting import wait_until
from onceproof.instruments.checkpoint_gate import CheckpointGate
from onceproof.scenario.points import Point

Seen = tuple[str, int, Point]


class Driver:
    """One JVM: sends lines, and reads the answers."""

    def __init__(self, gate: CheckpointGate) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(5)
        self._socket.connect(str(gate.path))
        self._lines = self._socket.makefile("r")
        self.send("hello 1")
        self.rules = set(iter(lambda: self._lines.readline().strip(), "go"))

    def send(self, line: str) -> None:
        self._socket.sendall(f"{line}\n".encode())

    def answer(self) -> str:
        return self._lines.readline().strip()

    def open(self, root: Path, query: str) -> None:
        self.send(f"1 open {root}/{query}/offsets")
        assert self.answer() == "go 1"

    def die(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._socket.close()


class Struck:
    """Records the gate's calls of ``on_point``, each of which blocks until ``go`` is set."""

    def __init__(self) -> None:
        self.points: list[Seen] = []
        self.attempts: list[int] = []
        self.failures: list[BaseException] = []
        self.go = threading.Event()
        self.go.set()
        self.held: threading.Event | None = None

    def __call__(self, query: str, batch: int, point: Point, attempt: int) -> threading.Event | None:
        self.attempts.append(attempt)
        self.points.append((query, batch, point))
        assert self.go.wait(5)
        return self.held


@pytest.fixture
def struck() -> Struck:
    return Struck()


Serve = Callable[..., CheckpointGate]


@pytest.fixture
def serve(tmp_path: Path, struck: Struck) -> Iterator[Serve]:
    open_gates = []

    def make(*wanted: tuple[int, Point]) -> CheckpointGate:
        gate = CheckpointGate(
            tmp_path / "socket",
            tmp_path / "a checkpoint",
            wanted=lambda: wanted,
            on_point=struck,
            on_failure=struck.failures.append,
        )
        gate.start()
        open_gates.append(gate)
        return gate

    yield make
    for gate in open_gates:
        gate.close()
    assert struck.failures == []


def test_a_held_driver_is_fenced_and_its_jvm_says_whether_it_can_be_used_again(serve: Serve, struck: Struck) -> None:
    gate = serve((2, Point.AFTER_SINK_COMMIT))
    driver, root = Driver(gate), gate.path.parent / "a%20checkpoint"
    assert gate.why_not_fenced(1) == "the kill is not at a write of the checkpoint, where the driver waits"
    struck.go.clear()
    driver.open(root, "q")
    driver.send(f"7 create {root}/q/commits/2")
    wait_until("the strike", lambda: struck.points, deadline_s=5)
    assert gate.why_not_fenced(1) is None
    assert gate.why_not_fenced(2) is not None  # another JVM
    outcome = gate.fence(1, gate.path.parent / "driver-1.log")
    assert driver.answer() == f"fence {gate.path.parent}/driver-1.log"
    struck.go.set()
    driver.send("kept 4711 secret 63")
    assert outcome.get(timeout=5) == "kept 4711 secret 63"
    again = Driver(gate)  # the next driver in the same JVM
    again.open(root, "q")
    again.die()


def test_a_fenced_jvm_that_ends_is_lost(serve: Serve) -> None:
    gate = serve()
    driver = Driver(gate)
    outcome = gate.fence(1, gate.path.parent / "log")
    driver.die()
    assert outcome.get(timeout=5) == "lost the JVM has ended"


def test_a_driver_with_several_queries_or_with_state_is_not_fenced(serve: Serve, struck: Struck) -> None:
    gate = serve((2, Point.AFTER_SINK_COMMIT))
    driver, root = Driver(gate), gate.path.parent / "a%20checkpoint"
    struck.go.clear()
    driver.open(root, "q")
    driver.send(f"7 create {root}/q/commits/2")
    wait_until("the strike", lambda: struck.points, deadline_s=5)
    (gate.path.parent / "a checkpoint" / "q" / "state").mkdir(parents=True)
    assert gate.why_not_fenced(1) == "the query keeps state"
    driver.open(root, "other")
    assert gate.why_not_fenced(1) == "the driver runs several queries, and only one of them waits"
    struck.go.set()
