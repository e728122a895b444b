"""The schedule of a Spark job: which parts can be taken away, and what a search for the smallest comes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.explore.shrink import Played, Shrink
from onceproof.kinds.contract import kind_of
from onceproof.pipeline.schedule import BatchSchedule, WholeJob, hints
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.schedule import Clue
from onceproof.scenario_files.checks import crosscheck
from onceproof.scenario_files.load import find, load


@pytest.fixture(scope="module")
def shipped() -> Scenario:
    """Four faults, at batches 1, 3, 5 and 7, in ten chunks."""
    return load(find("effectively-once"))


@pytest.fixture(scope="module")
def whole(shipped: Scenario) -> BatchSchedule:
    return WholeJob(shipped).schedule


def test_chunks_are_taken_away_from_the_end_and_stay_as_large_as_they_were(
    shipped: Scenario, whole: BatchSchedule
) -> None:
    made = WholeJob(shipped).of(BatchSchedule(4, whole.faults[:2]), Path("unused"))
    (before,), (after,) = shipped.input, made.input
    assert before.rows is not None
    assert (after.chunks, after.rows) == (4, before.rows * 4 // before.chunks)
    assert made.faults(FaultSpec) == list(whole.faults[:2])
    assert crosscheck.of_schedule(made) == []


def test_chunks_that_a_fault_needs_make_no_scenario_without_them(shipped: Scenario, whole: BatchSchedule) -> None:
    last = max(fault.at.batch for fault in whole.faults)
    (complaint,) = crosscheck.of_schedule(WholeJob(shipped).of(BatchSchedule(last, whole.faults), Path("unused")))
    assert "the job may never reach batch" in complaint.message


def test_a_witness_leads_to_the_fault_of_its_batch_and_to_the_chunks_until_then(whole: BatchSchedule) -> None:
    first, *others = hints(whole, [{3}])
    assert first == BatchSchedule(4, whole.faults[1:2])
    assert [len(one.faults) for one in others] == [1, 1]
    assert next(hints(whole, [{4}])) == BatchSchedule(5, whole.faults[1:2]), "no fault struck it: the last before"
    assert list(hints(whole, [set()])) == [], "nothing is known"


def test_a_kind_makes_hints_of_what_witnesses_name(shipped: Scenario, tmp_path: Path) -> None:
    kind = kind_of(shipped)
    clues = [[Clue("flights/0@655", 3), Clue(None, None)]]
    assert next(kind.hints(kind.whole(shipped), tmp_path, clues)).chunks == 4


def test_a_search_comes_to_the_fault_and_the_chunks_that_it_takes(shipped: Scenario, whole: BatchSchedule) -> None:
    needed = whole.faults[2]

    def play(given: BatchSchedule) -> Played | None:
        if crosscheck.of_schedule(WholeJob(shipped).of(given, Path("unused"))):
            return None
        shows = needed in given.faults
        return Played(frozenset(["duplicate"] if shows else []), "duplicate 1" if shows else "held")

    wanted = frozenset(["duplicate"])
    search = Shrink(whole, wanted, wanted, play, 60, alike=WholeJob(shipped).alike)
    shrunk = search.run(hints(whole, [{5}]))
    assert shrunk.best == BatchSchedule(6, (needed,)) and shrunk.minimal and shrunk.executions <= 4
    assert [tried.without for tried in shrunk.tried] == [
        "the last chunk",
        "lost-ack postgres, batch 5 @ before-sink-commit",
    ]
    assert dict(shrunk.best.sizes()) == {"chunks": 6, "faults": 1} and str(shrunk.best) == "6 chunks, 1 fault"
