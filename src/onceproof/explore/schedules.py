"""Which schedules `onceproof explore` tries: all single faults, all ordered pairs, or random ones of up to five faults."""

from __future__ import annotations

import random
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
_DRAWS_PER_SCHEDULE = 50
"""Draws for each random schedule that is wanted, at most: a small space holds fewer distinct ones than are wanted."""


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

    Each draw chooses the number of faults, then each fault among all places, and puts them into the order in which they can
    strike. The same seed gives the same schedules.
    """
    found: dict[tuple[Place, ...], None] = {}
    faults = st.lists(st.sampled_from(all_places), min_size=1, max_size=MOST_FAULTS)

    @seed(seed_)
    @settings(
        max_examples=number * _DRAWS_PER_SCHEDULE,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @given(faults, st.randoms(use_true_random=False))
    def draw(drawn: list[Place], shuffle: random.Random) -> None:
        if len(found) >= number:
            return
        shuffle.shuffle(drawn)
        ordered = tuple(sorted(drawn, key=lambda place: place.batch))
        if not isinstance(scheduled(ordered), str):
            found.setdefault(ordered)

    draw()
    return list(found)


def text_of(faults: Sequence[Place]) -> str:
    """The faults in words; the run without faults is named so."""
    return ", then ".join(map(str, faults)) or "no fault"


def strikes_of(all_faults: Sequence[Sequence[Place]]) -> Iterator[Schedule]:
    """The schedules of these faults, which a run can reach."""
    for faults in all_faults:
        schedule = scheduled(faults)
        assert not isinstance(schedule, str), schedule
        yield schedule
