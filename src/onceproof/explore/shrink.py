"""`onceproof shrink`: the smallest part of a run's schedule that still shows the same anomalies.

Delta debugging (A. Zeller, R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002) on real executions, guided
by what the run's witnesses name (`onceproof.kinds.contract.PipelineKind.hinted_schedules`): blind halving of 200 messages would
take hundreds of executions. What
it comes to is minimal if nothing more can be taken away: each single part (of consumers: message, consumer and fault) is tried,
with every way to place the faults that had named it. A finding that needs a fault stays one that needs it: a smaller schedule that shows the anomaly
without any fault as well shows another cause, and is not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from onceproof.base.errors import Interrupted, OnceproofError
from onceproof.scenario.schedule import MOST_WAYS, Schedule

#: From here on messages are halved away before they are tried one by one.
_MANY = 8


@dataclass(frozen=True)
class Executed:
    """What the execution of a schedule came to."""

    anomalies: frozenset[str]
    """After the claim."""
    summary: str
    """The verdict, in a line."""


@dataclass(frozen=True)
class Try:
    """Something taken away, and why it cannot be."""

    without: str
    schedule: Schedule
    came_to: str


@dataclass(frozen=True)
class Shrunk:
    best: Schedule
    executions: int
    tried: tuple[Try, ...]
    """Every removal from ``best`` that was tried, none of which shows it."""
    minimal: bool
    """Each single removal was tried, in every way."""
    why_not: str = ""
    """Where ``minimal`` is not so."""
    interrupted: bool = False


class _Spent(Exception):
    """No executions are left."""


@dataclass
class Shrink:
    """One search, with at most ``most`` calls of ``execute``. It returns None for a schedule that makes no valid scenario."""

    whole: Schedule
    wanted: frozenset[str]
    """The anomalies that must stay."""
    known: frozenset[str]
    """All that the run has shown: a schedule that shows another is about something else."""
    execute: Callable[[Schedule], Executed | None]
    most: int
    keep: Callable[[Schedule], None] = lambda _: None
    """Told of each schedule that is smaller and shows it."""
    alike: Callable[[Schedule], Hashable] = lambda schedule: schedule
    """The same for schedules that execute the same: only one of them is executed."""
    executions: int = 0
    _executed: dict[Hashable, Executed | None] = field(default_factory=dict)
    _needs_fault: bool = False
    _cut: list[str] = field(default_factory=list)
    """Removals from the best of which there are more ways than were listed."""

    def run(self, first: Sequence[Schedule] | Iterator[Schedule] = ()) -> Shrunk:
        """``first``: small schedules that may show it, tried in their order."""
        self.best = self.whole
        try:
            self._find(first)
            tried = self._reduce()
        except Interrupted:
            return self._ended("it was interrupted", interrupted=True)
        except OnceproofError as failed:
            if self.best == self.whole:
                raise  # nothing was found that could be lost
            return self._ended(f"an execution failed: {failed.message}")
        except _Spent:
            return self._ended(f"{self.executions} executions were used up before each single removal was tried")
        why = f"only the first {MOST_WAYS} ways to place the faults were tried without {', '.join(self._cut)}"
        cut = bool(self._cut)
        return Shrunk(self.best, self.executions, tuple(tried), minimal=not cut, why_not=why if cut else "")

    def _ended(self, why: str, *, interrupted: bool = False) -> Shrunk:
        """Before its end, with the best until then."""
        return Shrunk(self.best, self.executions, self._tried(), False, why, interrupted)

    # -- the search -----------------------------------------------------------------------------------------------

    def _find(self, first: Sequence[Schedule] | Iterator[Schedule]) -> None:
        if self.whole.faults:
            self._needs_fault = not self._shows(self.whole.calm())
            if not self._needs_fault:
                self._take(self.whole.calm())
        if self._needs_fault and any(self._taken(schedule) for schedule in first):
            return
        if len(self.best.parts) > _MANY:
            self._halve()

    def _halve(self) -> None:
        """Zeller's ddmin on the messages, complements only: a few alone seldom keep the order of takes."""
        cut_into = 2
        while len(self.best.parts) > 1:
            parts = self.best.parts
            size = -(-len(parts) // cut_into)
            cuts = [parts[start : start + size] for start in range(0, len(parts), size)]
            rests = (
                [part for part in parts if part not in set(cut)] for cut in reversed(cuts)
            )  # the end matters least
            if any(rest and self._taken(self.best.only(rest)) for rest in rests):
                cut_into = max(cut_into - 1, 2)
            elif cut_into >= len(parts) or size <= 2:
                return  # one by one comes next
            else:
                cut_into = min(2 * cut_into, len(parts))

    def _reduce(self) -> list[Try]:
        """Take away one thing after the other until nothing can be; returns all that was tried of the last."""
        while True:
            tried: list[Try] = []
            self._cut.clear()
            if not self._one_less(tried):
                return tried

    def _one_less(self, tried: list[Try]) -> bool:
        for removal in self.best.smaller():
            for schedule in removal.ways:
                if self._taken(schedule):
                    return True
                tried.append(Try(removal.without, schedule, self._came_to(schedule)))
            if removal.cut:
                self._cut.append(removal.without)
        return False

    def _taken(self, schedule: Schedule) -> bool:
        """Whether it shows it, by its faults if these are needed; it is the best then."""
        if not self._shows(schedule):
            return False
        if self._needs_fault and (not schedule.faults or self._shows(schedule.calm())):
            return False
        self._take(schedule)
        return True

    def _take(self, schedule: Schedule) -> None:
        self.best = schedule
        self.keep(schedule)

    def _shows(self, schedule: Schedule) -> bool:
        key = self.alike(schedule)
        if key not in self._executed:
            if self.executions >= self.most:
                raise _Spent
            self._executed[key] = self.execute(schedule)
            self.executions += self._executed[key] is not None
        return self._known_to_show(schedule)

    def _tried(self) -> tuple[Try, ...]:
        """Of a search that did not come to its end: what is known of the best."""
        return tuple(
            Try(removal.without, schedule, self._came_to(schedule))
            for removal in self.best.smaller()
            for schedule in removal.ways
            if self.alike(schedule) in self._executed
            and (not self._known_to_show(schedule) or self._known_to_show(schedule.calm()))
        )

    def _known_to_show(self, schedule: Schedule) -> bool:
        executed = self._executed.get(self.alike(schedule))
        return executed is not None and self.wanted <= executed.anomalies <= self.known

    def _came_to(self, schedule: Schedule) -> str:
        """Of one that was tried, and not taken."""
        executed = self._executed[self.alike(schedule)]
        if executed is None:
            return "no scenario: the other parts need it"
        if self._known_to_show(schedule):
            return f"{executed.summary}, but without its faults too: another cause"
        return executed.summary


def to_json(shrunk: Shrunk, whole: Schedule, **more: Any) -> dict[str, Any]:
    """For programs: before and after, what was tried of the last, and where the minimal scenario and its run are."""
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
