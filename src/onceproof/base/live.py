"""The live display of a command: lines as they come and, on a terminal, one panel below them. Elsewhere only the lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from onceproof.base.duration import clock
from onceproof.base.visible import visible

#: A wider panel would only be emptier.
_WIDEST = 100


class Display:
    """A context manager. Can be called from any thread. What is fetched meanwhile appears in the same panel (`shared`)."""

    def __init__(self, console: Console, name: str) -> None:
        self.console = console
        self.is_live = console.is_terminal and not console.is_dumb_terminal
        self._name = name
        self._rows: dict[str, str] = {}
        self._steps: dict[str, tuple[int, int, float]] = {}
        self._limit_s: float | None = None
        self._began = time.monotonic()
        # Only for changes: the thread that draws must not wait for one that prints. Both dicts are replaced, never changed.
        self._changing = threading.Lock()
        self._live = Live(get_renderable=self.panel, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        _open.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        with self._changing:  # an event that comes later draws nothing
            _open.remove(self)
            self._live.stop()

    def say(self, line: str, style: str = "") -> None:
        """Print a line, above the panel."""
        self.console.print(Text(visible(line), style=style), soft_wrap=True)

    def show(self, **rows: str) -> None:
        """Set rows of the panel: label -> text. Without a terminal nothing is shown."""
        with self._changing:
            self._rows = {**self._rows, **rows}
        self._draw()

    def count(self, limit_s: float | None = None) -> None:
        """Count the time from now on; with a limit, also what is left of it."""
        self._began, self._limit_s = time.monotonic(), limit_s

    def times(self) -> str:
        used = time.monotonic() - self._began
        left = "" if self._limit_s is None else f", {clock(max(self._limit_s - used, 0))} left"
        return f"{clock(used)} used{left}"

    def begin(self, what: str, steps: int) -> None:
        """Announce ``what``, which takes this number of steps."""
        self._set(what, (0, steps, time.monotonic()))
        if not self.is_live:
            self.say(f"{what} ...")

    def step(self, what: str) -> None:
        with self._changing:
            done, steps, began = self._steps[what]
            self._steps = {**self._steps, what: (done + 1, steps, began)}
        self._draw()

    def end(self, what: str) -> None:
        _, _, began = self._steps[what]
        self._set(what, None)
        if not self.is_live:
            self.say(f"{what}: done in {time.monotonic() - began:.1f} s")

    def panel(self) -> Panel:
        """What runs, at which step, and the time."""
        grid = Table.grid(padding=(0, 1))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(ratio=1, overflow="fold")
        rows = [*self._rows.items(), *(("fetch", f"{what}: {at[0]} of {at[1]}") for what, at in self._steps.items())]
        whole = "" if self._limit_s is None else f" of {clock(self._limit_s)}"
        for label, text in [*rows, ("time", f"{self.times()}{whole}")]:
            grid.add_row(label, Text(visible(text)))
        width = min(self.console.width, _WIDEST)
        title = Text(visible(self._name), style="bold")
        title.truncate(max(width - 6, 1), overflow="ellipsis")  # a longer title would widen the panel
        return Panel(grid, title=title, title_align="left", width=width)

    def _set(self, what: str, at: tuple[int, int, float] | None) -> None:
        with self._changing:
            others = {name: known for name, known in self._steps.items() if name != what or at is not None}
            self._steps = others if at is None else {**others, what: at}
        self._draw()

    def _draw(self) -> None:
        with self._changing:
            if self.is_live and self in _open:
                self._live.start()


_open: list[Display] = []


@contextmanager
def shared(name: str) -> Iterator[Display]:
    """The display that is open, or a new one on standard error: two live displays would overwrite each other."""
    if _open:
        yield _open[-1]
    else:
        with Display(Console(stderr=True, highlight=False, emoji=False), name) as display:
            yield display
