"""The timeline of a run: append-only events, written to ``events.jsonl`` and passed to listeners."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from onceproof.base.masking import masked_value

T = TypeVar("T")

EVENTS = "events.jsonl"
"""The file of a run directory that holds its timeline."""
_LONGEST_RUN_S = 1e9


@dataclass(frozen=True)
class Event:
    """One observation. ``at`` is seconds on the monotonic clock since the run began; ``kind`` is a dotted noun phrase."""

    at: float
    kind: str
    data: dict[str, Any]

    def to_line(self) -> str:
        return json.dumps({"at": self.at, "kind": self.kind, **self.data}, default=str) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Event:
        """Read a line of ``events.jsonl``. Raises `ValueError` if it is not an event: the last line of a killed run may be cut off."""
        try:
            data = json.loads(line)
            at, kind = data.pop("at"), data.pop("kind")
        except (KeyError, AttributeError, TypeError, RecursionError) as error:
            raise ValueError(f"this is not an event: {type(error).__name__}: {error}") from error
        if (
            isinstance(at, bool)
            or not isinstance(at, int | float)
            or not 0 <= at < _LONGEST_RUN_S
            or not isinstance(kind, str)
        ):
            raise ValueError("this is not an event: it needs a time, at, and a kind")
        return cls(float(at), kind, data)


def read_events(run_dir: Path) -> list[Event]:
    """The events of a stored run, in their order. Raises `OSError`, and `ValueError` for a line that is not an event."""
    with (run_dir / EVENTS).open(encoding="utf-8") as lines:
        return [Event.from_line(line) for line in lines]


Listener = Callable[[Event], None]


class Timeline:
    """Writes events in order and calls listeners. Safe from any thread; flushes every line, so a killed harness loses none."""

    def __init__(self, path: Path) -> None:
        self._started = time.monotonic()
        self.wall_start = time.time()
        self._lock = threading.Lock()
        self._file = path.open("a", encoding="utf-8")
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def now(self) -> float:
        """Seconds since the run began, on the same clock as `Event.at`."""
        return time.monotonic() - self._started

    def emit(self, kind: str, **data: Any) -> Event:
        with self._lock:
            data = masked_value(data)
            event = Event(round(self.now(), 6), kind, data)
            if not self._file.closed:
                self._file.write(event.to_line())
                self._file.flush()
        for listener in self._listeners:
            listener(event)
        return event

    def timed(self, service: str, start: Callable[[], T]) -> T:
        """What ``start`` returns. Emits ``stack.starting`` before and ``stack.ready``, with the seconds, after it."""
        self.emit("stack.starting", service=service)
        began = time.monotonic()
        started = start()
        self.emit("stack.ready", service=service, seconds=round(time.monotonic() - began, 3))
        return started

    def close(self) -> None:
        with self._lock:
            self._file.close()
