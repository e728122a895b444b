"""Which schedules `onceproof explore` tries: all single faults, all ordered pairs, or random ones of up to five faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
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
_MOST_ROUNDS = 25
"""Rounds of draws, at most: a small space holds fewer distinct schedules than are wanted."""
_LEAST_DRAWS = 50


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


def singles(all_places: Sequence[Place]) -> list[tuple[Place, ...]]:
    """Each fault alone."""
    return [(place,) for place in all_places]


def pairs(all_places: Sequence[Place]) -> list[tuple[Place, ...]]:
    """All ordered pairs, also those that no run can reach."""
    return [(first, second) for first in all_places for second in all_places]


def random_schedules(all_places: Sequence[Place], number: int, seed_: int) -> list[tuple[Place, ...]]:
    """``number`` distinct schedules of up to `MOST_FAULTS` faults that a run can reach, drawn by Hypothesis; fewer if there are
    not as many.

    Each draw is a list of places, brought into the order of their batches; within a batch it is the order of the draw. The same
    seed gives the same schedules.
    """
    found: dict[tuple[Place, ...], None] = {}
    for round_ in range(_MOST_ROUNDS):
        before = len(found)
        for faults in _drawn(all_places, max(2 * number, _LEAST_DRAWS), seed_ * _MOST_ROUNDS + round_):
            if not isinstance(scheduled(faults), str):
                found.setdefault(faults)
        if len(found) >= number or len(found) == before:
            break
    return list(found)[:number]


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


def strikes_of(all_faults: Sequence[Sequence[Place]]) -> Iterator[Schedule]:
    """The schedules of these faults, which a run can reach."""
    for faults in all_faults:
        schedule = scheduled(faults)
        assert not isinstance(schedule, str), schedule
        yield schedule
