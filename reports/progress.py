"""Shows the progress of a run: lines for phases, faults and restarts, and on a terminal a status below them.

It listens to the run's timeline. It is not a report, because it does not show the outcome.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from onceproof.base.timeline import Event
from onceproof.base.visible import visible

_BATCH_LINE_EVERY_S = 10.0
"""The shortest time between two lines about batches in a log: hundreds of them would bury the faults."""

_PHASES = {
    "fetch": "looking for components, fetching missing ones",
    "stack": "starting the services",
    "prepare": "preparing topics and tables",
    "run": "running the job: feeding input, injecting faults",
    "drain": "draining: faults are healed, waiting for the known end of the input",
    "collect": "collecting the history",
    "expect": "computing what the outputs must hold",
    "judge": "judging",
    "stop": "stopping everything",
}


class RunState:
    """The state of the run according to the events so far."""

    def __init__(self) -> None:
        self.phase = "fetch"
        self.batches: dict[str, int] = {}
        """Query -> last committed batch."""
        self.fed = 0
        self.done = 0
        """Records of committed batches."""
        self.active: dict[int, str] = {}
        """Index -> faults that struck and are not healed."""
        self.restarts = 0

    def add(self, event: Event) -> None:
        data = event.data
        match event.kind:
            case "phase":
                self.phase = data["name"]
            case "feed.chunk":
                self.fed += data.get("records") or 0
            case "batch.committed":
                self.batches[data.get("query") or ""] = data["batch"]
                self.done += data.get("records") or 0
            case "fault.fired":
                self.active[data["index"]] = f"{data['fault']} {data['target']}"
            case "fault.healed":
                self.active.pop(data["index"], None)
            case "job.started":
                self.restarts += 1 if data.get("start") else 0

    def batch(self) -> str:
        """The last batch: ``4``, or ``both 4, other 2`` with several queries; ``-`` before the first one."""
        if len(self.batches) == 1:
            return str(next(iter(self.batches.values())))
        return ", ".join(f"{query} {batch}" for query, batch in sorted(self.batches.items())) or "-"

    def summary(self) -> str:
        parts = [f"batch {self.batch()}", f"records in {self.fed:,}", f"out {self.done:,}"]
        if self.restarts:
            parts.append(f"restarts {self.restarts}")
        if self.active:
            parts.append(f"active: {', '.join(self.active.values())}")
        return "   ".join(parts)


class Progress:
    """Listener and context manager: ``with Progress(console, name) as progress: run(..., listeners=[progress])``.

    Shows a live status if ``console`` is a terminal, otherwise only lines. Can be called from any thread.
    """

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._state = RunState()
        self._lock = threading.Lock()
        self._last_batch_line_at = 0.0
        self._began = time.monotonic()
        self._live = Live(get_renderable=self._status, console=console, refresh_per_second=4, transient=True)
        self._is_live = console.is_terminal and not console.is_dumb_terminal

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._state.add(event)
            line = describe(event) or self._batch_line(event)
            if line is not None:
                self._console.print(
                    Text(f"{event.at:6.1f} s  {visible(line)}", style=_style(event.kind)), soft_wrap=True
                )
            if self._is_live:
                self._show(event)

    def _show(self, event: Event) -> None:
        """Show the status, except while fetching, which draws a progress bar: two live displays would overwrite each other."""
        if self._state.phase == "fetch":
            self._live.stop()
        else:
            self._live.start()

    def _batch_line(self, event: Event) -> str | None:
        due = event.at - self._last_batch_line_at >= _BATCH_LINE_EVERY_S
        if self._is_live or event.kind != "batch.committed" or not due:
            return None
        self._last_batch_line_at = event.at
        return self._state.summary()

    def _status(self) -> Group:
        elapsed = time.monotonic() - self._began
        head = f"{self._name}: {_PHASES.get(self._state.phase, self._state.phase)}   {elapsed:.0f} s"
        return Group(Text(visible(head), style="bold"), Text(visible(self._state.summary())))


def describe(event: Event) -> str | None:
    """The line for an event that is shown at once; None for other events."""
    data = event.data
    match event.kind:
        case "phase":
            return _PHASES.get(data["name"])
        case "stack.ready":
            return f"  {data['service']} is up ({data['seconds']:.1f} s)"
        case "job.started":
            return f"  job restarted (start {data['start'] + 1})" if data["start"] else "  job started"
        case "oracle.run":
            return f"  reference run without faults, in {data['chunks']} chunks"
        case "job.exited":
            return f"  job exited, code {data['code']}{' (killed by onceproof)' if data.get('killed') else ''}"
        case "bypass":
            return f"  BYPASS: {data['message']}"
        case "warning":
            return f"  warning: {data['message']}"
    if event.kind.startswith("fault."):
        return _fault_line(event.kind.removeprefix("fault."), data)
    return None


def _fault_line(stage: str, data: dict[str, Any]) -> str | None:
    if stage not in ("fired", "hit", "missed", "healed"):
        return None
    where = "" if data.get("batch") is None else f" at batch {data['batch']}, {data.get('point')}"
    line = f"  fault {data['index'] + 1}: {data['fault']} {data['target']} {stage}{where}"
    evidence = data.get("evidence") if stage == "missed" else None
    return f"{line}: {'; '.join(evidence)}" if evidence else line


def _style(kind: str) -> str:
    return {
        "fault.fired": "bold yellow",
        "fault.hit": "green",
        "fault.missed": "bold yellow",
        "warning": "yellow",
        "bypass": "bold red",
    }.get(kind, "")
