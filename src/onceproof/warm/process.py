"""The process with the session, as the harness sees it: starts it, sends it schedules, and reads its answers."""

from __future__ import annotations

import json
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.processes.owner import Owner, Service

READY_S = 180.0
"""How long the session may take to start."""


class SessionProcess:
    """Runs `onceproof.warm.session`. ``folder`` is its working folder; the owner ends the process."""

    def __init__(self, owner: Owner, folder: Path, log: Path) -> None:
        self.log = log
        self.service: Service
        self._owner = owner
        self._folder = folder
        self._closing = ExitStack()
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._connection: socket.socket

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it with these arguments, after that of its socket. Raises `EnvironmentProblem` if it does not connect."""
        here = self._owner.scratch / "warm.sock"
        listener = self._closing.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(here))
        listener.listen(1)
        listener.settimeout(1.0)
        self.service = self._owner.start(
            "warm-session",
            [sys.executable, "-m", "onceproof.warm.session", str(here), *words],
            log=self.log,
            env=environment,
            cwd=self._folder,
        )
        deadline = time.monotonic() + READY_S
        while True:
            try:
                self._connection = self._closing.enter_context(listener.accept()[0])
                self._closing.callback(_hang_up, self._connection)
                break
            except TimeoutError:
                if not self.service.is_running() or time.monotonic() > deadline:
                    raise EnvironmentProblem(
                        f"the warm session did not start:\n{self.service.log_tail()}", hint=f"its log: {self.log}"
                    ) from None
        self._connection.settimeout(None)
        threading.Thread(target=self._listen, name="warm-answers", daemon=True).start()

    def close(self) -> None:
        """Close the connection, which ends the process. Idempotent."""
        self._closing.close()

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a schedule. Raises `OSError` if the session has ended."""
        self._connection.sendall(json.dumps(request).encode() + b"\n")

    def answer(self, deadline_s: float, check: Callable[[], None]) -> dict[str, Any] | None:
        """The next answer; None if the session has ended. Calls ``check`` while it waits.

        Raises `EnvironmentProblem` if there is none within ``deadline_s`` seconds.
        """
        deadline = time.monotonic() + deadline_s
        while True:
            try:
                return self._answers.get(timeout=1.0)
            except queue.Empty:
                check()
                if time.monotonic() > deadline:
                    raise EnvironmentProblem(f"the warm session does not answer:\n{self.service.log_tail()}") from None

    def _listen(self) -> None:
        try:
            for line in self._connection.makefile("r", encoding="utf-8"):
                self._answers.put(json.loads(line))
        except OSError:
            pass
        finally:
            self._answers.put(None)


def _hang_up(connection: socket.socket) -> None:
    """Let the session read the end of its requests. Closing is not enough while a thread reads the answers."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
