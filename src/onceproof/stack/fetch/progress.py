"""What the fetching threads report to: it shows their steps, and says when to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

from onceproof.base.errors import OnceproofError
from onceproof.base.live import Display, shared


class FetchStopped(OnceproofError):
    """A fetching thread stopped because the command is ending. Not `Interrupted`, which only the main thread raises."""


class Progress:
    """The fetching threads report their steps here and ask whether to continue. Safe from any thread."""

    def __init__(self, *, show: bool) -> None:
        self.stopped = threading.Event()
        self._show = show
        self._display: Display | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self._show:
            self._display = self._open.enter_context(shared("fetching components"))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @contextmanager
    def doing(self, what: str, steps: int) -> Iterator[Callable[[], None]]:
        """Announce ``what``, which takes this number of steps: the block calls what it gets after each of them."""
        display = self._display

        def step() -> None:
            self.check()
            if display is not None:
                display.step(what)

        self.check()
        if display is not None:
            display.begin(what, steps)
        yield step
        if display is not None:
            display.end(what)

    def say(self, line: str) -> None:
        if self._display is not None:
            self._display.say(line)

    def check(self) -> None:
        """Raise `FetchStopped` once ``stopped`` is set."""
        if self.stopped.is_set():
            raise FetchStopped("fetching the components was interrupted")
