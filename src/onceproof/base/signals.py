"""The signals that end a command: Ctrl-C, SIGTERM, a closed terminal (SIGHUP) and Ctrl-backslash (SIGQUIT).

Inside `interruptible` a signal raises `Interrupted` in the main thread. Inside `uninterrupted`, which is for clean-up, it
is deferred and raised at the end of the block: the clean-up is finished, and the signal is not lost.
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
    """Handles the signals of one command."""

    def __init__(self) -> None:
        self.count = 0
        self.pending: signal.Signals | None = None
        """A signal that came during a clean-up and was not raised yet."""
        self.last: signal.Signals | None = None
        self.doing: list[Callable[[], str]] = []
        """Descriptions of the current clean-ups, the innermost last."""

    def handle(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.last = signal.Signals(number)
        if not self.doing:
            raise interrupted(self.last)
        self.pending = self.last
        force = f"\n  to end without clean-up: kill -KILL {os.getpid()}; afterwards: onceproof cleanup"
        _print(f"{self.last.name}: first {self.doing[-1]()}{force if self.count > 1 else ''}")


_watch: _Watch | None = None


@contextmanager
def interruptible() -> Iterator[None]:
    """Let signals raise `Interrupted` inside the block. Only in the main thread, and not inside another such block."""
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
            signal.signal(number, watch.handle)
        sys.unraisablehook = _report_unraisable
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
        _watch = None


def _report_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Print no traceback for a signal that came in a destructor or in one of Python's callbacks: `check` raises it again."""
    if not isinstance(unraisable.exc_value, Interrupted):
        sys.__unraisablehook__(unraisable)


class uninterrupted:  # noqa: N801 - used as a context manager, like contextlib's
    """Finish this block even if signals come; the last of them is raised at its end.

    ``doing`` describes the block ("stopping kafka-1") for a user who sends a signal meanwhile.
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
            if not isinstance(sys.exception(), Interrupted):  # else one is being raised already
                raise interrupted(number)


def taken() -> None:
    """The signals so far were the regular end of this command: `check` does not raise them."""
    if _watch is not None:
        _watch.last = None


def ignore() -> None:
    """From now on ignore the signals: the exit code is known, and the interpreter is about to end."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def check() -> None:
    """Raise `Interrupted` if a signal has come since the command began.

    Call it at the end of a command: it must not succeed if other code has swallowed an `Interrupted` (as Python does in a
    destructor).
    """
    if _watch is not None and _watch.last is not None:
        raise interrupted(_watch.last)


def interrupted(number: signal.Signals) -> Interrupted:
    return Interrupted(f"interrupted by {number.name}")


def _print(text: str) -> None:
    # Not through sys.stderr: the signal may have come in the middle of a write to it. The terminal may be closed.
    with suppress(OSError):
        os.write(2, f"\n{text}\n".encode())
