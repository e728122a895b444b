"""Shows the progress of a run on the live display: lines for phases, faults and restarts, and the state in its panel.

It listens to the run's timeline. It is not a report, because it does not show the outcome.
"""

from __future__ import annotations

import threading
from typing import Any

from rich.console import Console

from onceproof.base.live import Display
from onceproof.base.timeline import Event

_BATCH_LINE_EVERY_S = 10.0
"""The shortest time between two lines about batches in a log: hundreds of them would bury the faults."""

_PHASES = {
    "fetch": "looking for components, fetching missing ones",
    "stack": "setting up the services",
    "prepare": "preparing topics and tables",
    "run": "running the job: feeding input, injecting faults",
    "drain": "draining: faults are healed, waiting for the known end of the input",
    "collect": "collecting the history",
    "expect": "computing what the outputs must hold",
    "judge": "judging",
    "stop": "stopping everything",
}


class RunState:
    """The state of the run according to the events so far. Events come from several threads."""

    def __init__(self) -> None:
        self.phase = "fetch"
        self.batches: dict[str, int] = {}
        """Query -> last committed batch."""
        self.fed = 0
        self.done = 0
        """Records of committed batches."""
        self.active: dict[int, str] = {}
        """Index -> faults that struck and are not healed."""
        self.hit = 0
        self.restarts = 0
        self._lock = threading.Lock()

    def add(self, event: Event) -> None:
        data = event.data
        with self._lock:
            match event.kind:
                case "phase":
                    self.phase = data["name"]
                case "feed.chunk":
                    self.fed += data.get("records") or 0
                case "batch.committed":
                    self.batches = {**self.batches, data.get("query") or "": data["batch"]}
                    self.done += data.get("records") or 0
                case "fault.fired":
                    self.active = {**self.active, data["index"]: f"{data['fault']} {data['target']}"}
                case "fault.healed":
                    self.active = {index: what for index, what in self.active.items() if index != data["index"]}
                case "fault.hit":
                    self.hit += 1
                case "job.started":
                    self.restarts += 1 if data.get("start") else 0

    def batch(self) -> str:
        """The last batch: ``4``, or ``both 4, other 2`` with several queries; ``-`` before the first one."""
        if len(self.batches) == 1:
            return str(next(iter(self.batches.values())))
        return ", ".join(f"{query} {batch}" for query, batch in sorted(self.batches.items())) or "-"

    def summary(self) -> str:
        """One line for a log."""
        active = [f"active: {', '.join(self.active.values())}"] if self.active else []
        return "   ".join([f"batch {self.batch()}", *self._counts(), *active])

    def rows(self) -> dict[str, str]:
        """The rows of the panel."""
        active = f"{', '.join(self.active.values())}: struck, not healed yet" if self.active else "none active"
        return {
            "phase": _PHASES.get(self.phase, self.phase),
            "batch": "   ".join([self.batch(), *self._counts()]),
            "fault": f"{active}{f', {self.hit} hit' if self.hit else ''}",
        }

    def _counts(self) -> list[str]:
        counts = [f"records fed {self.fed:,}", f"in committed batches {self.done:,}"]
        return [*counts, f"restarts {self.restarts}"] if self.restarts else counts


class Progress(Display):
    """Listener: ``with Progress(console, name, limit_s) as progress: run(..., listeners=[progress])``.

    ``limit_s``: for feeding and draining together.
    """

    def __init__(self, console: Console, name: str, limit_s: float) -> None:
        super().__init__(console, name)
        self._limit = limit_s
        self._state = RunState()
        self._last_batch_line_at = 0.0

    def __call__(self, event: Event) -> None:
        self._state.add(event)
        line = describe(event) or self._batch_line(event)
        if line is not None:
            self.say(f"{event.at:6.1f} s  {line}", _style(event.kind))
        if event.kind == "phase" and event.data["name"] != "drain":  # the limit is for both
            self.count(self._limit if event.data["name"] == "run" else None)
        self.show(**self._state.rows())

    def _batch_line(self, event: Event) -> str | None:
        due = event.at - self._last_batch_line_at >= _BATCH_LINE_EVERY_S
        if self.is_live or event.kind != "batch.committed" or not due:
            return None
        self._last_batch_line_at = event.at
        return self._state.summary()


def describe(event: Event) -> str | None:
    """The line for an event that is shown at once; None for other events."""
    data = event.data
    match event.kind:
        case "phase":
            return _PHASES.get(data["name"])
        case "stack.ready":
            return f"  {data['service']} is up ({data['seconds']:.1f} s)"
        case "job.started":
            return f"  job restarted (start {data['start']})" if data["start"] else "  job started"
        case "oracle.run":
            return f"  reference run without faults, in {data['chunks']} chunks"
        case "driver.jvm" if data["how"] == "kept":
            return f"  start {data['start']} uses the JVM of the start before it (tier kept)"
        case "driver.jvm" if "why" in data:
            return f"  start {data['start']} has a new JVM: {data['why']}"
        case "job.exited":
            return f"  job exited, code {data['code']}{' (ended by onceproof)' if data.get('killed') else ''}"
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
