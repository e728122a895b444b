"""The signals that end a command: Ctrl-C, SIGTERM, a closed terminal (SIGHUP) and Ctrl-backslash (SIGQUIT).

Inside `interruptible` a signal raises `Interrupted` in the main thread. Inside `uninterrupted`, which is for clean-up, it is
remembered and raised at the end: what was begun there is finished, and the signal is not lost.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

from onceproof.base.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class _Watch:
    """The signals of one command."""

    def __init__(self) -> None:
        self.count = 0
        self.pending: signal.Signals | None = None
        """Came during clean-up, and was not raised yet."""
        self.last: signal.Signals | None = None
        self.doing: list[Callable[[], str]] = []
        """The clean-ups that are going on, the innermost last."""

    def arrived(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.last = signal.Signals(number)
        if not self.doing:
            raise interrupted(self.last)
        self.pending = self.last
        force = f"\n  to end without clean-up: kill -KILL {os.getpid()}; afterwards: onceproof cleanup"
        _say(f"{self.last.name}: first {self.doing[-1]()}{force if self.count > 1 else ''}")


_watch: _Watch | None = None


@contextmanager
def interruptible() -> Iterator[None]:
    """Let signals raise `Interrupted` in here. Does nothing in other threads than the main one, and inside another one."""
    global _watch
    if _watch is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _watch = watch = _Watch()
    before: dict[signal.Signals, Any] = {}
    hook = sys.unraisablehook
    try:
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if number is signal.SIGHUP and handler is signal.SIG_IGN:
                continue  # started with nohup
            before[number] = handler
            signal.signal(number, watch.arrived)
        sys.unraisablehook = _unraisable
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
        _watch = None


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """A signal that came in a destructor or in a callback of Python's own: `check` raises it again, without this traceback."""
    if not isinstance(unraisable.exc_value, Interrupted):
        sys.__unraisablehook__(unraisable)


class uninterrupted:  # noqa: N801 - used as a context manager, like contextlib's
    """Finish this block whatever signals come; the first of them is raised at its end.

    ``doing`` says what is going on ("stopping kafka-1"), for a user who sends a signal meanwhile.
    """

    def __init__(self, doing: str | Callable[[], str]) -> None:
        self._doing = doing if callable(doing) else lambda: doing
        self._watch: _Watch | None = None

    def __enter__(self) -> None:
        if _watch is not None and threading.current_thread() is threading.main_thread():
            _watch.doing.append(self._doing)
            self._watch = _watch

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        watch = self._watch
        if watch is None:
            return
        watch.doing.pop()
        if watch.pending is not None and not watch.doing:
            number, watch.pending = watch.pending, None
            if not isinstance(sys.exception(), Interrupted):  # else one is on its way already
                raise interrupted(number)


def ignore() -> None:
    """From now on no signal ends the program: its exit code is known, and the interpreter is about to stop."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def check() -> None:
    """Raise `Interrupted` if a signal came since the command began.

    For the end of a command: an `Interrupted` that somebody else's code has swallowed (Python itself does in a destructor)
    must not end as a success.
    """
    if _watch is not None and _watch.last is not None:
        raise interrupted(_watch.last)


def interrupted(number: signal.Signals) -> Interrupted:
    return Interrupted(f"interrupted by {number.name}")


def _say(text: str) -> None:
    # Not through sys.stderr: the signal may have come in the middle of a write to it. With a closed terminal nobody reads it.
    with suppress(OSError):
        os.write(2, f"\n{text}\n".encode())
