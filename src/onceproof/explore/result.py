"""The result of an exploration, and what follows from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from onceproof.explore.exploration import Confirmation, Directory, Faults, Plan, State, Verdicts
from onceproof.judge.findings import Outcome


@dataclass
class Exploration:
    """The result of an exploration; while it goes on, what is known until now."""

    plan: Plan
    directory: Directory
    wanted: list[Faults] = field(default_factory=list)
    """All schedules that a run can reach."""
    impossible: dict[Faults, str] = field(default_factory=dict)
    """Schedules that no run can reach, and why."""
    undrawn: int = 0
    """How many of the random schedules that are wanted the budget did not allow to draw."""
    results: dict[Faults, Verdicts] = field(default_factory=dict)
    confirmations: list[Confirmation] = field(default_factory=list)
    baseline: Verdicts | None = None
    """The run without faults."""
    sample: int = 0
    """How many schedules that held were to be repeated."""
    distinct: int = 0
    """How many distinct outcomes were judged in this session."""
    warm_s: float = 0.0
    warm_done: int = 0
    """Schedules that the warm tier executed in this session, and the seconds that it took for them."""
    ended: str = "done"
    """``done``, ``budget`` or ``interrupted``."""

    @property
    def executed(self) -> int:
        """How many schedules were executed to their end."""
        return len(self.results) - self.count()[State.NOT_EXECUTED]

    @property
    def repeated(self) -> list[Confirmation]:
        """The last comparison of each schedule with real kills: one without a verdict is repeated, a decided one is not."""
        return list({one.faults: one for one in self.confirmations}.values())

    @property
    def disagreements(self) -> list[Confirmation]:
        return [one for one in self.repeated if one.decided and not one.agrees]

    @property
    def trusted(self) -> bool:
        """Whether the tier's own results count: no ordinary run disagreed."""
        return self.plan.tier == "real" or not self.disagreements

    def count(self) -> Counter[State]:
        return Counter(found.state for found in self.results.values())

    def confirmed(self) -> list[Confirmation]:
        """Violations that real kills show, whatever the session said of these schedules."""
        return [one for one in self.repeated if one.real.state is State.VIOLATED]

    def shown(self) -> dict[Faults, Verdicts]:
        """Schedule -> the ordinary run in which it was violated, in either tier."""
        found = {one.faults: one.real for one in self.confirmed()}
        if self.plan.tier == "real":
            found |= {faults: one for faults, one in self.results.items() if one.state is State.VIOLATED}
        return found

    def outcome(self) -> Outcome:
        """Violated only by real kills, and held only if every schedule held and no ordinary run disagreed."""
        if self.ended == "interrupted":
            return Outcome.INTERRUPTED
        if self.shown():
            return Outcome.VIOLATED
        if self.baseline is not None and self.baseline.state is not State.HELD:
            return Outcome.VIOLATED if self.baseline.state is State.VIOLATED else Outcome.INCONCLUSIVE
        counted = self.count()
        all_held = counted[State.HELD] + counted[State.N_A] == len(self.wanted) and counted[State.HELD] > 0
        whole = all_held and not self.undrawn
        checked = self.plan.tier == "real" or any(one.agrees for one in self.confirmations)
        return Outcome.HELD if whole and self.trusted and checked else Outcome.INCONCLUSIVE
