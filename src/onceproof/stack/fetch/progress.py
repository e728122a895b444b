"""Shows the progress of a fetch on standard error: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from onceproof.base.errors import OnceproofError
from onceproof.base.visible import visible


class FetchStopped(OnceproofError):
    """A fetching thread stopped because the command is ending. Not `Interrupted`, which only the main thread raises."""


class Progress:
    """The fetching threads report their steps here and ask whether to continue. Safe from any thread."""

    def __init__(self, *, show: bool) -> None:
        self.stopped = threading.Event()
        self._show = show
        console = Console(stderr=True)
        self._live = show and console.is_terminal
        self._console = console
        self._started: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not self._live,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, what: str, steps: int) -> None:
        """Announce ``what``, which takes this number of steps."""
        self.check()
        self._started[what] = time.monotonic()
        if self._live:
            self._tasks[what] = self._bars.add_task(what, total=steps)
        else:
            self.say(f"{what} ...")

    def step(self, what: str) -> None:
        self.check()
        if self._live:
            self._bars.advance(self._tasks[what])

    def end(self, what: str) -> None:
        if not self._live:
            self.say(f"{what}: done in {time.monotonic() - self._started[what]:.1f} s")

    def say(self, line: str) -> None:
        if self._show:
            self._console.print(visible(line), markup=False, highlight=False)

    def check(self) -> None:
        """Raise `FetchStopped` once ``stopped`` is set."""
        if self.stopped.is_set():
            raise FetchStopped("fetching the components was interrupted")
