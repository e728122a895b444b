"""The schedule of a Spark job: which parts can be removed, and what a search for the smallest schedule finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.explore.shrink import Executed, Shrink
from onceproof.kinds.contract import kind_of
from onceproof.pipeline.schedule import BatchSchedule, WholeJob, hinted_schedules
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.schedule import ShrinkHint
from onceproof.scenario_files.checks import crosscheck
from onceproof.scenario_files.load import find, load


@pytest.fixture(scope="module")
def shipped() -> Scenario:
    """Four faults, at batches 1, 3, 5 and 7, in ten chunks."""
    return load(find("effectively-once"))


@pytest.fixture(scope="module")
def whole(shipped: Scenario) -> BatchSchedule:
    return WholeJob(shipped).schedule


def test_chunks_are_removed_from_the_end_and_keep_their_size(shipped: Scenario, whole: BatchSchedule) -> None:
    made = WholeJob(shipped).of(BatchSchedule(4, whole.faults[:2]), Path("unused"))
    (before,), (after,) = shipped.input, made.input
    assert before.rows is not None
    assert (after.chunks, after.rows) == (4, before.rows * 4 // before.chunks)
    assert made.faults(FaultSpec) == list(whole.faults[:2])
    assert crosscheck.of_schedule(made) == []


def test_a_schedule_without_the_chunks_that_a_fault_needs_is_refused(shipped: Scenario, whole: BatchSchedule) -> None:
    last = max(fault.at.batch for fault in whole.faults)
    (complaint,) = crosscheck.of_schedule(WholeJob(shipped).of(BatchSchedule(last, whole.faults), Path("unused")))
    assert "the job may never reach batch" in complaint.message


def test_hints_keep_the_fault_of_a_witnesss_batch_and_the_chunks_up_to_it(whole: BatchSchedule) -> None:
    first, *others = hinted_schedules(whole, [{3}])
    assert first == BatchSchedule(4, whole.faults[1:2])
    assert [len(one.faults) for one in others] == [1, 1]
    assert next(hinted_schedules(whole, [{4}])) == BatchSchedule(5, whole.faults[1:2]), (
        "no fault struck batch 4, so the last one before it is kept"
    )
    assert list(hinted_schedules(whole, [set()])) == [], "the witnesses name no batch"


def test_the_kind_of_pipeline_turns_clues_into_hints(shipped: Scenario, tmp_path: Path) -> None:
    kind = kind_of(shipped)
    hints = [[ShrinkHint("flights/0@655", 3), ShrinkHint(None, None)]]
    assert next(kind.hinted_schedules(kind.whole(shipped), tmp_path, hints)).chunks == 4


def test_the_search_ends_with_the_needed_fault_and_chunks(shipped: Scenario, whole: BatchSchedule) -> None:
    needed = whole.faults[2]

    def execute(given: BatchSchedule) -> Executed | None:
        if crosscheck.of_schedule(WholeJob(shipped).of(given, Path("unused"))):
            return None
        shows = needed in given.faults
        return Executed(frozenset(["duplicate"] if shows else []), "duplicate 1" if shows else "held")

    wanted = frozenset(["duplicate"])
    search = Shrink(whole, wanted, wanted, execute, 60, execution_key=WholeJob(shipped).execution_key)
    shrunk = search.run(hinted_schedules(whole, [{5}]))
    assert shrunk.best == BatchSchedule(6, (needed,)) and shrunk.minimal and shrunk.executions <= 4
    assert [tried.without for tried in shrunk.tried] == [
        "the last chunk",
        "lost-ack postgres, batch 5 @ before-sink-commit",
    ]
    assert dict(shrunk.best.sizes()) == {"chunks": 6, "faults": 1} and str(shrunk.best) == "6 chunks, 1 fault"
