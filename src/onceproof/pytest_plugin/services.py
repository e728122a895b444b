"""The services that the tests of one process share: the first test that needs them starts them, and pytest stops them at its end.

Between two runs, a signal would end pytest at once and leave them running: they have sessions of their own. So SIGTERM and a closed
terminal (SIGHUP) end pytest as Ctrl-C does. A run handles signals itself.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from functools import partial
from types import FrameType

import pytest

from onceproof.base.errors import Interrupted
from onceproof.base.signals import interruptible
from onceproof.stack.sharing.shared import SharedStack

_SHARED = pytest.StashKey[SharedStack]()
_OWNER = os.getpid()


def shared_services(config: pytest.Config) -> SharedStack:
    """The services of this process, which `onceproof.run` starts when it needs them."""
    if _SHARED not in config.stash:
        config.stash[_SHARED] = shared = SharedStack()
        _end_on_signals(config)
        config.add_cleanup(partial(_stop, shared))
    return config.stash[_SHARED]


def _stop(shared: SharedStack) -> None:
    with suppress(Interrupted), interruptible():  # a signal has to wait for the services to end, and pytest ends anyway
        shared.close()


def _end_on_signals(config: pytest.Config) -> None:
    """Until the end of pytest, let signals that nobody else handles end it in order. Python allows that in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
            config.add_cleanup(partial(_reset, number))


def _end(number: int, _frame: FrameType | None) -> None:
    if os.getpid() != _OWNER:  # a process that a test forked has no services, and ends as it would without this handler
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    raise KeyboardInterrupt(f"interrupted by {signal.Signals(number).name}")


def _reset(number: int) -> None:
    if signal.getsignal(number) is _end:  # else somebody has replaced it meanwhile
        signal.signal(number, signal.SIG_DFL)
