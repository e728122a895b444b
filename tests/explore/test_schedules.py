"""Which schedules are enumerated, with which attempts, and which ones no run can reach."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis.configuration import storage_directory

from onceproof.explore.matrix import interval
from onceproof.explore.schedules import (
    MOST_FAULTS,
    ORDER,
    Drawn,
    Place,
    own_storage,
    pairs,
    places,
    reachable,
    scheduled,
    singles,
)
from onceproof.scenario.points import Point
from onceproof.warm.attempts import Strike

ALL = places(ORDER, (1, 2, 3))


def test_each_point_of_each_batch_is_a_place_in_the_order_of_a_run() -> None:
    assert len(ALL) == 15
    assert ALL[0] == Place(1, Point.BEFORE_OFFSET_LOG) and ALL[-1] == Place(3, Point.AFTER_COMMIT_LOG)
    assert [place.point for place in ALL[:5]] == list(ORDER)


def test_all_ordered_pairs_are_enumerated_and_each_is_possible_or_has_a_reason() -> None:
    everything = pairs(ALL)
    assert len(everything) == len(set(everything)) == 225
    possible = [faults for faults in everything if not isinstance(scheduled(faults), str)]
    # Across batches: 3 pairs of batches, 25 each. Within one: 25 - 5 after the commit is logged - 3 before the plan of a replay.
    assert len(possible) == 3 * 25 + 3 * (25 - 5 - 3)
    assert all(not isinstance(scheduled(faults), str) for faults in singles(ALL))


@pytest.mark.parametrize(
    ("faults", "wanted"),
    [
        ([(1, Point.AFTER_SINK_COMMIT)], [1]),
        ([(1, Point.AFTER_SINK_COMMIT), (2, Point.AFTER_SINK_COMMIT)], [1, 1]),
        ([(1, Point.AFTER_SINK_COMMIT), (1, Point.AFTER_SINK_COMMIT), (1, Point.AFTER_COMMIT_LOG)], [1, 2, 3]),
        ([(1, Point.BEFORE_OFFSET_LOG), (1, Point.BEFORE_OFFSET_LOG), (1, Point.AFTER_OFFSET_LOG)], [1, 2, 3]),
        ([(1, Point.AFTER_SINK_COMMIT), (1, Point.AFTER_OFFSET_LOG)], [1, 2]),
    ],
)
def test_a_fault_strikes_the_attempt_that_follows_the_last_crash(
    faults: list[tuple[int, Point]], wanted: list[int]
) -> None:
    found = scheduled([Place(*fault) for fault in faults])
    assert found == tuple(Strike(batch, point, attempt) for (batch, point), attempt in zip(faults, wanted, strict=True))


@pytest.mark.parametrize(
    ("faults", "why"),
    [
        ([(2, Point.AFTER_SINK_COMMIT), (1, Point.AFTER_SINK_COMMIT)], "batch 1 is over"),
        ([(1, Point.AFTER_COMMIT_LOG), (1, Point.AFTER_COMMIT_LOG)], "not attempted again"),
        ([(1, Point.AFTER_OFFSET_LOG), (1, Point.BEFORE_OFFSET_LOG)], "does not write offsets/1 again"),
    ],
)
def test_what_no_run_can_reach_has_a_reason(faults: list[tuple[int, Point]], why: str) -> None:
    found = scheduled([Place(*fault) for fault in faults])
    assert isinstance(found, str) and why in found


def drawn(all_places: list[Place], portions: int, seed: int) -> Drawn:
    found = Drawn()
    with own_storage():
        for _ in range(portions):
            found = found.more(all_places, seed)
    return found


def test_random_schedules_are_distinct_possible_and_the_same_for_the_same_seed() -> None:
    found = drawn(ALL, 1, 7).faults
    assert len(found) == len(set(found)) > 200
    assert {len(faults) for faults in found} == set(range(1, MOST_FAULTS + 1))
    assert all(not isinstance(scheduled(faults), str) for faults in found)
    assert found == drawn(ALL, 1, 7).faults != drawn(ALL, 1, 8).faults
    more = drawn(ALL, 2, 7).faults
    assert more[: len(found)] == found and len(more) > len(found)


def test_a_space_with_fewer_schedules_than_wanted_gives_those_that_it_has() -> None:
    few = drawn([Place(1, Point.AFTER_COMMIT_LOG)], 4, 0)
    assert few.faults == ((Place(1, Point.AFTER_COMMIT_LOG),),) and few.exhausted


@pytest.mark.parametrize(("points", "schedules"), [(5, 25_151), (4, None), (1, None)])
def test_the_number_of_reachable_schedules_is_that_of_all_possible_ones(points: int, schedules: int | None) -> None:
    some = places(ORDER[:points], (1, 2, 3))
    if schedules is None:
        ordered = (
            faults for size in range(1, MOST_FAULTS + 1) for faults in itertools.product(some, repeat=size)
            if all(one.batch <= other.batch for one, other in itertools.pairwise(faults))
        )  # fmt: skip
        schedules = sum(not isinstance(scheduled(faults), str) for faults in ordered)
    assert reachable(some, 10**9) == schedules and reachable(some, 7) == min(7, schedules)


def test_drawing_leaves_no_files_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = (
        "from onceproof.explore.schedules import *; places_ = places(ORDER, (1,)); "
        "storage = own_storage(); storage.__enter__(); assert Drawn().more(places_, 1).faults"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert list(tmp_path.iterdir()) == []


def test_drawing_keeps_the_folder_that_hypothesis_uses_otherwise(tmp_path: Path) -> None:
    def examples() -> Path:
        found: Any = storage_directory("examples")
        return Path(getattr(found, "path", found))  # a Path itself before Hypothesis 6.155

    before = examples()
    with own_storage():
        assert examples() != before
    assert examples() == before


def test_the_interval_of_a_share() -> None:
    low, high = interval(5, 50)
    assert low == pytest.approx(0.0435, abs=5e-4) and high == pytest.approx(0.2136, abs=5e-4)
    assert interval(0, 20)[0] == 0.0 and interval(20, 20)[1] == 1.0
