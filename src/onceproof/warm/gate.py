"""Serves the checkpoint file system of the session: each log write of each schedule, of which some end in an error.

A write that ends in an error ends its query at exactly this place: nothing later becomes durable, and what was durable stays. So
the checkpoint is in the state in which a crash at this point leaves it. In the child process.
"""

from __future__ import annotations

import contextlib
import re
import socketserver
import threading
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from onceproof.base.line_server import LineServer
from onceproof.instruments.checkpoint_places import LOG_POINTS, uncommitted
from onceproof.scenario.points import Point
from onceproof.warm.attempts import Attempts

_LINE = re.compile(r"(\d+) (\w+) (/.*)")


class SessionGate:
    """Serves the socket at ``path`` (see `LineServer`). The driver waits at every log write of ``batches``."""

    def __init__(self, path: Path, batches: Iterable[int]) -> None:
        self.path = path
        self._rules = [f"park {log} {batch} {moment}" for batch in batches for log, moment in LOG_POINTS]
        self._schedules: dict[Path, Attempts] = {}
        self._lock = threading.Lock()
        self._server = LineServer(path, "warm-gate", self._serve)

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._server.close()

    def add(self, attempts: Attempts) -> None:
        with self._lock:
            self._schedules[attempts.checkpoint] = attempts

    def remove(self, attempts: Attempts) -> None:
        with self._lock:
            del self._schedules[attempts.checkpoint]

    def _serve(self, connection: socketserver.StreamRequestHandler) -> None:
        with contextlib.suppress(ConnectionError):
            if not connection.rfile.readline().startswith(b"hello "):
                return
            connection.wfile.write("".join(f"{line}\n" for line in (*self._rules, "go")).encode())
            for line in connection.rfile:
                number, ends = self._handle(line.decode().rstrip("\n"))
                if number:
                    connection.wfile.write(f"{'fail' if ends else 'go'} {number}\n".encode())

    def _handle(self, line: str) -> tuple[int, bool]:
        """The number of the message, and whether the write ends in an error."""
        match = _LINE.fullmatch(line)
        if match is None:
            return 0, False  # a checkpoint elsewhere than in a local folder is none of ours
        number, moment, path = int(match[1]), match[2], Path(unquote(match[3], errors="surrogateescape"))
        folder = path if moment == "open" else path.parent
        with self._lock:
            attempts = self._schedules.get(folder.parent)
        if attempts is None:
            return number, False
        if moment == "open":
            return number, folder.name == "offsets" and _opened(attempts)
        point = LOG_POINTS.get((folder.name, moment))
        if point is None:
            return number, False
        batch = int(path.name)
        if point is Point.BEFORE_OFFSET_LOG:
            attempts.begins(batch)
        return number, attempts.reached(batch, point)


def _opened(attempts: Attempts) -> bool:
    """A query opens its log: with a replay, if a batch is planned and not committed. Returns whether it ends here."""
    batch = uncommitted(attempts.checkpoint)
    if batch is None:
        return attempts.is_dead(attempts.start)
    attempts.begins(batch)
    return attempts.reached(batch, Point.AFTER_OFFSET_LOG)
