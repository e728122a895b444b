"""Which schedules `onceproof explore` tries: all single faults, all ordered pairs, or random ones of up to five faults."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, Phase, Verbosity, configuration, given, seed, settings
from hypothesis import strategies as st

from onceproof.scenario.points import Point
from onceproof.warm.attempts import Strike

#: The order in which a batch reaches the points.
ORDER = (
    Point.BEFORE_OFFSET_LOG,
    Point.AFTER_OFFSET_LOG,
    Point.BEFORE_SINK_COMMIT,
    Point.AFTER_SINK_COMMIT,
    Point.AFTER_COMMIT_LOG,
)
MOST_FAULTS = 5
_PORTION = 500
"""Draws in a portion. It takes about half a second of CPU time."""
_FEW = _PORTION // 100
_MOST_IDLE = 3


@dataclass(frozen=True, order=True)
class Place:
    """A point of a batch."""

    batch: int
    point: Point

    def __str__(self) -> str:
        return f"batch {self.batch} {self.point}"


Schedule = tuple[Strike, ...]


def places(points: Sequence[Point], batches: Sequence[int]) -> list[Place]:
    """All places, in the order in which a run without faults reaches them."""
    return [Place(batch, point) for batch in batches for point in ORDER if point in points]


def scheduled(faults: Sequence[Place]) -> Schedule | str:
    """The faults, each with the attempt at which it strikes; or why no run can reach them in this order.

    After a crash the batch in doubt is attempted once more. One that was planned is replayed: its ``offsets/N`` is not
    written again. One whose commit is logged is over.
    """
    strikes: list[Strike] = []
    attempt, planned, over = 1, False, False
    before: Place | None = None
    for fault in faults:
        if before is None or fault.batch > before.batch:
            attempt, planned, over = 1, False, False
        elif fault.batch < before.batch:
            return f"batch {fault.batch} is over when batch {before.batch} begins"
        else:
            attempt += 1
            planned = planned or before.point is not Point.BEFORE_OFFSET_LOG
            over = before.point is Point.AFTER_COMMIT_LOG
        if over:
            return f"batch {fault.batch} is not attempted again once its commit is logged"
        if planned and fault.point is Point.BEFORE_OFFSET_LOG:
            return f"the replay of batch {fault.batch} does not write offsets/{fault.batch} again"
        strikes.append(Strike(fault.batch, fault.point, attempt))
        before = fault
    return tuple(strikes)


def strikes_of(faults: Sequence[Place]) -> Schedule:
    """As `scheduled`, for faults that a run can reach."""
    schedule = scheduled(faults)
    assert not isinstance(schedule, str), schedule
    return schedule


def singles(all_places: Sequence[Place]) -> list[tuple[Place, ...]]:
    """Each fault alone."""
    return [(place,) for place in all_places]


def pairs(all_places: Sequence[Place]) -> list[tuple[Place, ...]]:
    """All ordered pairs, also those that no run can reach."""
    return [(first, second) for first in all_places for second in all_places]


def reachable(all_places: Sequence[Place], most: int) -> int:
    """How many schedules of up to `MOST_FAULTS` faults a run can reach with faults at these places; ``most`` if there are more."""
    found = 0
    todo: list[tuple[Place, ...]] = [()]
    while todo and found < most:
        faults = todo.pop()
        # A fault that cannot follow the ones before it cannot follow them in a longer schedule either.
        longer = [(*faults, place) for place in all_places if not faults or place.batch >= faults[-1].batch]
        longer = [one for one in longer if not isinstance(scheduled(one), str)]
        found += len(longer)
        todo += longer if len(faults) + 1 < MOST_FAULTS else []
    return min(found, most)


@dataclass(frozen=True)
class Drawn:
    """Random schedules that a run can reach, as far as they were drawn. The same seed gives the same ones in the same order."""

    faults: tuple[tuple[Place, ...], ...] = ()
    """They are distinct."""
    portions: int = 0
    """How many portions were drawn."""
    idle: int = 0
    """How many of the last portions, in a row, had hardly any new schedule."""

    @property
    def exhausted(self) -> bool:
        """Whether no others are likely to be found: a small space holds fewer distinct schedules than are wanted."""
        return self.idle >= _MOST_IDLE

    def within(self, all_places: Collection[Place]) -> list[tuple[Place, ...]]:
        """Those that have all of their faults at these places."""
        return [faults for faults in self.faults if all(place in all_places for place in faults)]

    def more(self, all_places: Sequence[Place], seed_: int) -> Drawn:
        """With one more portion, drawn by Hypothesis within `own_storage`.

        Each draw is a list of up to `MOST_FAULTS` places, brought into the order of their batches; within a batch it is the order
        of the draw.
        """
        found = dict.fromkeys(self.faults)
        for faults in _drawn(all_places, _PORTION, (seed_ << 32) + self.portions):
            if not isinstance(scheduled(faults), str):
                found.setdefault(faults)
        new = len(found) - len(self.faults)
        return Drawn(tuple(found), self.portions + 1, self.idle + 1 if new < _FEW else 0)


@contextmanager
def own_storage() -> Iterator[None]:
    """Hypothesis writes its files into a temporary folder meanwhile, not into the current one."""
    before = vars(configuration).get("__hypothesis_home_directory")
    with TemporaryDirectory(prefix="onceproof-") as folder:
        configuration.set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            configuration.set_hypothesis_home_dir(before)


def _drawn(all_places: Sequence[Place], draws: int, seed_: int) -> list[tuple[Place, ...]]:
    drawn: list[tuple[Place, ...]] = []

    @seed(seed_)
    @settings(
        max_examples=draws,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(st.sampled_from(all_places), min_size=1, max_size=MOST_FAULTS))
    def draw(faults: list[Place]) -> None:
        drawn.append(tuple(sorted(faults, key=lambda place: place.batch)))

    draw()
    return drawn


def text_of(faults: Sequence[Place]) -> str:
    """The faults in words; the run without faults is named so."""
    return ", then ".join(map(str, faults)) or "no fault"
