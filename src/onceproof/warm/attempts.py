"""What one schedule has reached in the session, and whether the next fault of it strikes there. In the child process."""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onceproof.scenario.points import Point


class Crash(BaseException):
    """Ends an attempt at a point, as a crash of the driver would. No ``except Exception`` of a sink may catch it."""


@dataclass(frozen=True)
class Strike:
    """One fault of a schedule: the driver ends at this point of this attempt at the batch."""

    batch: int
    point: Point
    attempt: int = 1


@dataclass
class Attempts:
    """The attempts of one schedule at its batches. Thread-safe.

    Faults strike in their order: the second one cannot strike before the first. An attempt at a batch begins when the driver
    creates ``offsets/N``, and a replay when a query opens its log and finds ``offsets/N`` without ``commits/N``.
    """

    checkpoint: Path
    strikes: Sequence[Strike]
    start: int = 0
    """The current start of the query, from 0."""
    struck: bool = False
    """Whether a fault has ended the current start. Nothing of it may take effect from then on."""
    fired: list[float] = field(default_factory=list)
    """For each fault that has struck, the wall clock, in seconds."""
    events: list[tuple[float, str, int, int]] = field(default_factory=list)
    """Wall clock, point, batch, start."""
    instruments: set[str] = field(default_factory=set)
    """What has reported `Point.BEFORE_SINK_COMMIT`: ``failpoint`` or ``psycopg``."""
    connections: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    """The Postgres connections of this schedule. The kernel would close those of a process that was killed."""
    _attempts: Counter[int] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin_start(self, number: int) -> None:
        with self._lock:
            self.start, self.struck = number, False

    def begins(self, batch: int) -> None:
        """A new attempt at the batch begins."""
        with self._lock:
            self._attempts[batch] += 1

    def is_dead(self, start: int) -> bool:
        """Whether this start of the query has ended, or was struck."""
        with self._lock:
            return self.struck or start != self.start

    def reached(self, batch: int, point: Point, instrument: str = "checkpoint") -> bool:
        """Note that the batch has reached the point. Returns whether the attempt ends here."""
        with self._lock:
            if self.struck:
                return True
            now = time.time()
            self.events.append((now, str(point), batch, self.start))
            if point is Point.BEFORE_SINK_COMMIT:
                self.instruments.add(instrument)
            if len(self.fired) < len(self.strikes):
                due = self.strikes[len(self.fired)]
                if (due.batch, due.point, due.attempt) == (batch, point, max(self._attempts[batch], 1)):
                    self.fired.append(now)
                    self.struck = True
            return self.struck

    def commits(self) -> int:
        """How many batches have committed so far. It grows with the schedule's progress."""
        with self._lock:
            return sum(point == Point.AFTER_COMMIT_LOG for _, point, _, _ in self.events)

    def to_json(self) -> dict[str, Any]:
        with self._lock:
            return {"fired": [*self.fired], "events": [*self.events], "instruments": sorted(self.instruments)}
