"""Shows the progress of a qualification on the live display: its lines have the time used and left."""

from __future__ import annotations

import textwrap

from rich.console import Console

from onceproof.base.live import Display
from onceproof.base.timeline import Event
from onceproof.base.words import times
from onceproof.faults.job import Job
from onceproof.qualify.cells import Cell, CellState
from onceproof.reports.progress import RunState, describe

#: The events of a run that are shown: about its cells, or about what is wrong. All events are in its ``events.jsonl``.
_SHOWN = ("fault.hit", "fault.missed", "warning", "bypass")


#: Characters of the names of the cells in the panel. The line above it has all.
_SHOWN_OF_CELLS = 150


class ProgressOnConsole(Display):
    """Implements `onceproof.qualify.session.ProgressListener`."""

    def __init__(self, console: Console, name: str, budget_s: float) -> None:
        super().__init__(console, name)
        self._budget_s = budget_s
        self._state = RunState()

    def starts(self) -> None:
        self.count(self._budget_s)

    def begins(self, what: str) -> None:
        self._state = RunState()
        self.print(what, "bold")
        number, _, cells = what.partition(": ")
        self.show(now=number, cells=textwrap.shorten(cells, _SHOWN_OF_CELLS, placeholder=" ..."), **self._state.rows())

    def event(self, event: Event) -> None:
        self._state.add(event)
        if event.kind in _SHOWN and (line := describe(event)) is not None:
            self.print(line)
        self.show(**self._state.rows())

    def print(self, line: str, style: str = "") -> None:
        self.say(f"{self.times()}  {line}", style)


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
