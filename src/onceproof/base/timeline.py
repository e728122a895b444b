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


@dataclass(frozen=True)
class Event:
    """One observation. ``at`` is seconds on the monotonic clock since the run began; ``kind`` is a dotted noun phrase."""

    at: float
    kind: str
    data: dict[str, Any]


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """The events of a stored run, in their order: each has ``at``, ``kind`` and its data. Raises `OSError` or `ValueError`."""
    with (run_dir / "events.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


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
                self._file.write(json.dumps({"at": event.at, "kind": kind, **data}, default=str) + "\n")
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
