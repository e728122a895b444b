"""Shows the progress of an exploration on the live display."""

from __future__ import annotations

import time
from collections import Counter

from rich.console import Console

from onceproof.base.live import Display
from onceproof.explore.exploration import State

_EVERY_S = 10.0
"""Where there is no terminal, a line of progress comes this often."""


class ProgressOnConsole(Display):
    """Implements `onceproof.explore.session.Listener`."""

    def __init__(self, console: Console, name: str) -> None:
        super().__init__(console, name)
        self._what = ""
        self._plain = not console.is_terminal
        self._last = time.monotonic()

    def begins(self, what: str) -> None:
        self._what = what
        self.print(what)
        self.show(now=what)

    def counts(self, done: int, of: int, states: Counter[State]) -> None:
        text = f"{done} of {of}: " + ", ".join(f"{states[state]} {state}" for state in State if states[state])
        self.show(now=self._what, schedules=text)
        if self._plain and (done == of or time.monotonic() - self._last > _EVERY_S):
            self._last = time.monotonic()
            self.print(text)

    def print(self, line: str) -> None:
        self.say(f"{self.times()}  {line}")
