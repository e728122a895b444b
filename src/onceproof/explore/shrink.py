"""`onceproof shrink`: the smallest part of a run's schedule that still shows the same anomalies.

Delta debugging (A. Zeller, R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002) with real executions. What
the witnesses of the run name guides the search (`onceproof.kinds.contract.PipelineKind.hinted_schedules`): blind halving of 200 messages
would take hundreds of executions.

The result is minimal if nothing more can be removed: the removal of each single part (for consumers: message, consumer, fault) is
tried, with every way to place the faults that named this part. If the finding needs a fault, the result needs one as well: a smaller
schedule that also shows the anomaly without any fault shows another cause, and is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from onceproof.base.errors import Interrupted, OnceproofError
from onceproof.scenario.schedule import MOST_WAYS, Schedule

#: With more parts than this, halves are removed before single parts are tried.
_MANY = 8


@dataclass(frozen=True)
class Executed:
    """The result of executing a schedule."""

    anomalies: frozenset[str]
    """Those that the claim does not allow."""
    summary: str
    """The verdict, in one line."""


@dataclass(frozen=True)
class TriedRemoval:
    """A removal that was tried, and why it was rejected."""

    without: str
    schedule: Schedule
    came_to: str


@dataclass(frozen=True)
class Shrunk:
    """The result of a search."""

    best: Schedule
    executions: int
    tried: tuple[TriedRemoval, ...]
    """Every removal from ``best`` that was tried. None of them shows the anomalies."""
    minimal: bool
    """Whether every single removal was tried, in every way."""
    why_not: str = ""
    """Why ``minimal`` is false."""
    interrupted: bool = False


class _Spent(Exception):
    """Raised when no executions are left."""


@dataclass
class Shrink:
    """One search, which calls ``execute`` at most ``most`` times."""

    whole: Schedule
    wanted: frozenset[str]
    """The anomalies that must stay."""
    known: frozenset[str]
    """All anomalies of the run. A schedule that shows another one is rejected."""
    execute: Callable[[Schedule], Executed | None]
    """Executes a schedule. Returns None if it is not a valid scenario; then nothing was executed."""
    most: int
    keep: Callable[[Schedule], None] = lambda _: None
    """Called with each smaller schedule that shows the anomalies."""
    execution_key: Callable[[Schedule], Hashable] = lambda schedule: schedule
    """Gives equal values for schedules that run in the same way: only one of them is executed."""
    executions: int = 0
    _results: dict[Hashable, Executed | None] = field(default_factory=dict)
    _needs_fault: bool = False
    _cut: list[str] = field(default_factory=list)
    """Removals from the best schedule whose faults can be placed in more ways than were listed."""

    def run(self, first: Sequence[Schedule] | Iterator[Schedule] = ()) -> Shrunk:
        """Search, beginning with ``first``: small schedules that may show the anomalies, in this order."""
        self.best = self.whole
        try:
            self._try_hints(first)
            tried = self._reduce()
        except Interrupted:
            return self._end_early("it was interrupted", interrupted=True)
        except OnceproofError as failed:
            if self.best == self.whole:
                raise  # no smaller schedule was found that would be lost
            return self._end_early(f"an execution failed: {failed.message}")
        except _Spent:
            return self._end_early(f"{self.executions} executions were used up before each single removal was tried")
        why = f"only the first {MOST_WAYS} ways to place the faults were tried without {', '.join(self._cut)}"
        cut = bool(self._cut)
        return Shrunk(self.best, self.executions, tuple(tried), minimal=not cut, why_not=why if cut else "")

    def _end_early(self, why: str, *, interrupted: bool = False) -> Shrunk:
        """Return the result of a search that ended early: the best schedule until then."""
        return Shrunk(self.best, self.executions, self._known_removals(), False, why, interrupted)

    # -- the search -----------------------------------------------------------------------------------------------

    def _try_hints(self, first: Sequence[Schedule] | Iterator[Schedule]) -> None:
        if self.whole.faults:
            self._needs_fault = not self._shows(self.whole.without_faults())
            if not self._needs_fault:
                self._set_best(self.whole.without_faults())
        if self._needs_fault and any(self._accept(schedule) for schedule in first):
            return
        if len(self.best.parts) > _MANY:
            self._halve()

    def _halve(self) -> None:
        """Zeller's ddmin on the messages, with complements only: a few messages alone seldom keep the order of takes."""
        cut_into = 2
        while len(self.best.parts) > 1:
            parts = self.best.parts
            size = -(-len(parts) // cut_into)
            cuts = [parts[start : start + size] for start in range(0, len(parts), size)]
            # Begin with the last cut: the end matters least.
            rests = ([part for part in parts if part not in set(cut)] for cut in reversed(cuts))
            if any(rest and self._accept(self.best.only(rest)) for rest in rests):
                cut_into = max(cut_into - 1, 2)
            elif cut_into >= len(parts) or size <= 2:
                return  # single parts are tried next
            else:
                cut_into = min(2 * cut_into, len(parts))

    def _reduce(self) -> list[TriedRemoval]:
        """Remove one part after the other until none can be removed; return the removals tried from the last schedule."""
        while True:
            tried: list[TriedRemoval] = []
            self._cut.clear()
            if not self._remove_one(tried):
                return tried

    def _remove_one(self, tried: list[TriedRemoval]) -> bool:
        for removal in self.best.smaller():
            for schedule in removal.ways:
                if self._accept(schedule):
                    return True
                tried.append(TriedRemoval(removal.without, schedule, self._describe_result(schedule)))
            if removal.cut:
                self._cut.append(removal.without)
        return False

    def _accept(self, schedule: Schedule) -> bool:
        """Whether the schedule shows the anomalies, because of its faults if faults are needed. If so, it becomes the best."""
        if not self._shows(schedule):
            return False
        if self._needs_fault and (not schedule.faults or self._shows(schedule.without_faults())):
            return False
        self._set_best(schedule)
        return True

    def _set_best(self, schedule: Schedule) -> None:
        self.best = schedule
        self.keep(schedule)

    def _shows(self, schedule: Schedule) -> bool:
        key = self.execution_key(schedule)
        if key not in self._results:
            if self.executions >= self.most:
                raise _Spent
            self._results[key] = self.execute(schedule)
            self.executions += self._results[key] is not None
        return self._known_to_show(schedule)

    def _known_removals(self) -> tuple[TriedRemoval, ...]:
        """Return the removals from the best schedule that a search tried before it ended early."""
        return tuple(
            TriedRemoval(removal.without, schedule, self._describe_result(schedule))
            for removal in self.best.smaller()
            for schedule in removal.ways
            if self.execution_key(schedule) in self._results
            and (not self._known_to_show(schedule) or self._known_to_show(schedule.without_faults()))
        )

    def _known_to_show(self, schedule: Schedule) -> bool:
        result = self._results.get(self.execution_key(schedule))
        return result is not None and self.wanted <= result.anomalies <= self.known

    def _describe_result(self, schedule: Schedule) -> str:
        """Return the result of a schedule that was tried and rejected."""
        result = self._results[self.execution_key(schedule)]
        if result is None:
            return "not a valid scenario: the other parts need it"
        if self._known_to_show(schedule):
            return f"{result.summary}, but also without its faults: another cause"
        return result.summary


def to_json(shrunk: Shrunk, whole: Schedule, **more: Any) -> dict[str, Any]:
    """Return the result for programs: sizes before and after, and the removals that were tried from the best schedule."""
    return {
        "before": dict(whole.sizes()),
        "after": dict(shrunk.best.sizes()),
        "executions": shrunk.executions,
        "minimal": shrunk.minimal,
        "why_not": shrunk.why_not or None,
        "interrupted": shrunk.interrupted,
        "tried": [
            {"without": t.without, "schedule": str(t.schedule), "came_to": t.came_to} for t in shrunk.tried
        ],
        **more,
    }  # fmt: skip
