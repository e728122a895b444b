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
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find


@pytest.fixture(scope="module")
def shipped() -> Scenario:
    """Four faults, at batches 1, 3, 5 and 7, in ten chunks."""
    return load(find("effectively-once"))


@pytest.fixture(scope="module")
def whole(shipped: Scenario) -> BatchSchedule:
    return WholeJob(shipped).schedule


def test_chunks_are_removed_from_the_end_and_keep_their_size(shipped: Scenario, whole: BatchSchedule) -> None:
    made = WholeJob(shipped).of(BatchSchedule(4, whole.records, whole.faults[:2]), Path("unused"))
    (before,), (after,) = shipped.input, made.input
    assert before.rows is not None
    assert (after.chunks, after.rows) == (4, before.rows * 4 // before.chunks)
    assert made.faults(FaultSpec) == list(whole.faults[:2])
    assert crosscheck.of_schedule(made) == []


def test_a_schedule_without_the_chunks_that_a_fault_needs_is_refused(shipped: Scenario, whole: BatchSchedule) -> None:
    last = max(fault.at.batch for fault in whole.faults)
    (complaint,) = crosscheck.of_schedule(
        WholeJob(shipped).of(BatchSchedule(last, whole.records, whole.faults), Path("unused"))
    )
    assert "the job may never reach batch" in complaint.message


def test_hints_keep_the_fault_of_a_witnesss_batch_and_the_chunks_up_to_it(whole: BatchSchedule) -> None:
    first, *others = hinted_schedules(whole, [{3}])
    assert first == BatchSchedule(4, 1, whole.faults[1:2]), "of one record in each chunk"
    assert [(one.chunks, one.records) for one in others] == [(5, 1), (4, 6_000), (5, 6_000), (10, 6_000)]
    assert [len(one.faults) for one in others] == [1] * 4
    assert next(hinted_schedules(whole, [{4}])) == BatchSchedule(5, 1, whole.faults[1:2]), (
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
    assert shrunk.best == BatchSchedule(6, 1, (needed,)) and shrunk.minimal and shrunk.executions <= 4
    assert [tried.without for tried in shrunk.tried] == [
        "lost-ack postgres, batch 5 @ before-sink-commit",
        "the last 3 chunks",
        "the last chunk",
    ]
    assert dict(shrunk.best.sizes()) == {"chunks": 6, "records of a chunk": 1, "faults": 1}
    assert str(shrunk.best) == "6 chunks of 1 record, 1 fault"


def test_of_each_chunk_the_first_records_are_kept(shipped: Scenario, whole: BatchSchedule) -> None:
    assert whole.records == 6_000
    made = WholeJob(shipped).of(BatchSchedule(3, 7, whole.faults[:1]), Path("unused"))
    assert (made.input[0].chunks, made.input[0].rows) == (3, 21)
    assert WholeJob(shipped).of(whole, Path("unused")).input == shipped.input, "the whole schedule changes nothing"


@pytest.mark.parametrize("needed", [1, 2, 77, 1_000, 4_500, 5_999, 6_000])
def test_the_search_finds_how_many_records_of_a_chunk_are_needed(
    shipped: Scenario, whole: BatchSchedule, needed: int
) -> None:
    def execute(given: BatchSchedule) -> Executed | None:
        if crosscheck.of_schedule(WholeJob(shipped).of(given, Path("unused"))):
            return None
        shows = whole.faults[0] in given.faults and given.records >= needed
        return Executed(frozenset(["duplicate"] if shows else []), "duplicate 1" if shows else "held")

    wanted = frozenset(["duplicate"])
    search = Shrink(whole, wanted, wanted, execute, 60, execution_key=WholeJob(shipped).execution_key)
    shrunk = search.run(hinted_schedules(whole, [{1}]))
    assert shrunk.best == BatchSchedule(2, needed, whole.faults[:1]) and shrunk.minimal
    assert "1 record of each chunk" in [tried.without for tried in shrunk.tried] or needed == 1
