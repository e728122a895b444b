"""Shows the progress of a qualification: lines with the time used and left, and on a terminal a status line below them."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from onceproof.base.timeline import Event
from onceproof.base.visible import visible
from onceproof.base.words import times
from onceproof.faults.job import Job
from onceproof.qualify.cells import Cell, CellState
from onceproof.reports.progress import RunState, describe

#: The events of a run that are shown: about its cells, or about what is wrong. All events are in its ``events.jsonl``.
_SHOWN = ("fault.hit", "fault.missed", "warning", "bypass")


class ProgressOnConsole:
    """Implements `onceproof.qualify.session.ProgressListener`. A context manager; called from any thread."""

    def __init__(self, console: Console, name: str, budget_s: float) -> None:
        self._console = console
        self._name = name
        self._budget_s = budget_s
        self._began = time.monotonic()
        self._what = "looking for the components"
        self._state = RunState()
        self._lock = threading.Lock()
        self._live = Live(get_renderable=self._status, console=console, refresh_per_second=2, transient=True)
        self._is_live = console.is_terminal and not console.is_dumb_terminal

    def __enter__(self) -> ProgressOnConsole:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def starts(self) -> None:
        self._began = time.monotonic()

    def begins(self, what: str) -> None:
        with self._lock:
            self._what, self._state = what.partition(": ")[0], RunState()
            self._print(what, "bold")
            if self._is_live:
                self._live.start()

    def event(self, event: Event) -> None:
        with self._lock:
            self._state.add(event)
            if event.kind in _SHOWN and (line := describe(event)) is not None:
                self._print(line, "")

    def print(self, line: str) -> None:
        with self._lock:
            self._print(line, "")

    def _print(self, line: str, style: str) -> None:
        self._console.print(Text(f"{self._times()}  {visible(line)}", style=style), soft_wrap=True)

    def _times(self) -> str:
        used = time.monotonic() - self._began
        return f"{clock(used)} used, {clock(max(self._budget_s - used, 0))} left"

    def _status(self) -> Text:
        shown = f"{self._name}: {self._what}   {self._times()}   {self._state.summary()}"
        return Text(visible(shown), style="dim")


def clock(seconds: float) -> str:
    """Return minutes and seconds, rounded: ``9:05``."""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d}"


def describe_job(job: Job) -> str:
    """What the run without faults showed of the job, in one line."""
    queries = ", ".join(f"{query.name} ({times(query.data_batches, 'batch')} with data)" for query in job.queries)
    sinks = ", ".join(dict.fromkeys(sink.words for sink in job.sinks)) or job.no_commit()
    return f"the job holds without faults; seen: {queries}; {sinks}"


def describe_cell(cell: Cell) -> str:
    """What a run showed of a cell, in one line."""
    if cell.exercised:
        found = ", ".join(f"{anomaly} {count:,}" for anomaly, count in sorted(cell.anomalies.items()))
        how = "approximately placed, " if cell.state is CellState.APPROXIMATE else ""
        return f"  {cell.title()}: {how}{cell.verdict}{f' ({found})' if found else ''}"
    seen = "violated in this run, " if cell.shared is not None and cell.shared.anomalies else ""
    again = "to be run alone" if cell.state is CellState.PENDING else "not reached"
    return f"  {cell.title()}: {seen}{again}: {cell.why}"
