"""What tests of the checkpoint gate share: a driver's end of its socket, and what the gate calls."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from onceproof.instruments.checkpoint_gate import CheckpointGate
from onceproof.scenario.points import Point

Seen = tuple[str, int, Point]


_NUMBERS = itertools.count(1)


class Driver:
    """One JVM: sends lines, and reads the answers. With the ``application`` of a driver, it is an executor of that driver."""

    def __init__(self, gate: CheckpointGate, application: str | None = None, *, secret: str | None = None) -> None:
        host, _, port = gate.address.rpartition(":")
        self._socket = socket.socket(socket.AF_INET if host else socket.AF_UNIX)
        self._socket.settimeout(5)
        self._socket.connect((host, int(port)) if host else gate.address)
        self._lines = self._socket.makefile("r")
        self.application = application or f"app-{next(_NUMBERS)}"
        self.send(" ".join(filter(None, ["hello 1", self.application, secret])))
        self.rules = set()
        while (line := self.answer()) != "go":
            if not line:
                raise ConnectionRefusedError("the gate has closed the connection")
            self.rules.add(line)

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
        self.queries: list[tuple[str, str, str]] = []
        self.go = threading.Event()
        self.go.set()
        self.held: threading.Event | None = None

    def __call__(self, query: str, batch: int, point: Point, attempt: int) -> threading.Event | None:
        self.attempts.append(attempt)
        self.points.append((query, batch, point))
        assert self.go.wait(5)
        return self.held


Serve = Callable[..., CheckpointGate]
