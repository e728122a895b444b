"""What is tried again: cells that held at other batches, and the cells of runs that were cut off or that failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceproof.api.qualification import qualify
from onceproof.base.errors import ServiceFailed
from onceproof.judge.findings import Outcome
from onceproof.qualify import matrix
from onceproof.qualify.cells import CellState
from onceproof.qualify.directory import Directory
from onceproof.scenario_files.load import load

from .made_up import PATH, MadeUpRuns


def test_cells_that_hold_are_repeated_at_other_batches(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    runs.missing = {"crash after-commit-log"}
    result = work(tries=3, budget_s=7200)
    once = work(budget_s=7200).progress.steps
    hits = {len(set(cell.hits)) for cell in result.cells if cell.exercised}
    assert hits == {3} and result.progress.steps > once and result.progress.ended == "done"
    assert " held 3/3" in matrix.as_text(result)
    (cell,) = [cell for cell in matrix.as_json(result)["cells"] if cell["name"] == "crash-driver-after-sink-commit"]
    assert (cell["tries"], len(cell["hits"])) == (3, 3)


@pytest.mark.parametrize(("options", "tried"), [({}, 3), ({"tries": 1}, 1), ({"tries": 2}, 2)])
def test_the_api_tries_each_cell_as_often_as_it_was_told(
    runs: MadeUpRuns, tmp_path: Path, options: dict[str, Any], tried: int
) -> None:
    result = qualify(PATH, budget="2h", runs_dir=tmp_path, fresh_stack=True, **options)
    assert {len(set(cell.hits)) for cell in result.cells if cell.exercised} == {tried}
    assert f" held {tried}/{tried}" in matrix.as_text(result) or tried == 1


def test_repetitions_use_what_is_left_of_the_budget(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    whole = work()
    result = work(tries=3, budget_s=whole.progress.spent_s + 60)
    hits = [len(cell.hits) for cell in result.cells if cell.exercised]
    assert set(hits) == {1, 2} and result.outcome is Outcome.HELD and not result.unfinished


def test_a_cell_whose_run_the_budget_cut_off_is_tried_again(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    runs.missing = {"crash before-offset-log"}
    work()
    number = next(n for n, file in enumerate(runs.files, 1) if "before-offset-log" in file.name)
    runs.files.clear()
    runs.stuck, runs.slow = {number}, {number: 600.0}
    result = work()
    (cut,) = [cell for cell in result.progress.cells if cell.name == "crash-driver-before-offset-log"]
    assert (cut.state, cut.verdict, cut.why) == (
        CellState.PENDING,
        None,
        "the budget ended its run before it had drained",
    )
    assert result.unfinished
    runs.missing = set()
    assert work(directory_to_continue=result.directory.path).outcome is Outcome.HELD


def test_cells_whose_shared_run_the_budget_cut_off_are_not_reached(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    runs.cut, runs.slow = {2}, {2: 600.0}
    result = work()
    struck = [c for c in result.cells if c.runs]
    assert len(struck) > 1 and {c.state for c in struck} == {CellState.NOT_REACHED}
    (why,) = {c.why for c in struck}
    used_up = "no further run was made: the budget of 10:00 was used up"
    assert why == f"{used_up} (the budget ended its run before it had drained)"
    assert result.strongest is None and result.outcome is Outcome.INCONCLUSIVE
    runs.slow, runs.cut = {}, set()
    assert work(directory_to_continue=result.directory.path).outcome is Outcome.HELD


def test_a_run_that_the_budget_cut_off_does_not_spoil_the_rest(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    runs.stuck, runs.slow = {2}, {2: 600.0}  # its cells held as far as it went
    result = work()
    assert len(runs.files) == 2 and len(result.progress.decided) == 1, "the run without faults"
    assert (result.outcome, result.unclear) == (Outcome.INCONCLUSIVE, ())
    assert not any(cell.exercised for cell in result.cells)
    runs.slow, runs.stuck = {}, set()
    again = work(directory_to_continue=result.directory.path)
    assert (again.outcome, again.unclear, again.strongest.doubts) == (Outcome.HELD, (), [])


def test_a_repetition_that_the_budget_cut_off_is_not_counted_as_a_hit(
    work: Callable[..., Any], runs: MadeUpRuns
) -> None:
    once = work(budget_s=7200)
    runs.files.clear()
    number = once.progress.steps + 1
    runs.stuck, runs.slow = {number}, {number: 7200.0}
    result = work(budget_s=7200, tries=2)
    struck = [cell for cell in result.cells if cell.tries == 2]
    assert struck and {cell.counted for cell in struck} == {"1/2"}
    assert {cell.why for cell in struck} == {None} and result.outcome is Outcome.HELD
    runs.slow, runs.stuck = {}, set()
    again = work(budget_s=7200, tries=2, directory_to_continue=result.directory.path)
    reached = [cell for cell in again.cells if cell.exercised]
    assert {len(set(cell.hits)) for cell in reached} == {2} == {len(cell.hits) for cell in reached}
    assert again.outcome is Outcome.HELD


def test_a_violation_of_a_run_that_the_budget_cut_off_remains(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    runs.stuck = runs.violated = {2}
    runs.slow = {2: 600.0}
    result = work()
    assert result.outcome is Outcome.VIOLATED and len(result.progress.decided) == 2
    runs.slow = {}
    assert work(directory_to_continue=result.directory.path).outcome is Outcome.VIOLATED


def test_a_repetition_that_failed_is_counted_and_has_no_run_directory(
    work: Callable[..., Any], runs: MadeUpRuns
) -> None:
    once = work(budget_s=7200)
    runs.files.clear()
    runs.raising = {once.progress.steps + 1: ServiceFailed("kafka died")}
    result = work(budget_s=7200, tries=2)
    (failed,) = {cell.failed for cell in result.cells if cell.counted == "2/3"}
    cells = [cell for cell in matrix.as_json(result)["cells"] if cell["tries"] == 3]
    assert failed == 1 and cells and all(Path(run).is_dir() for cell in cells for run in cell["runs"])
    assert Directory.open(result.directory.path)[1] == result.progress


def test_a_repetition_that_is_not_decided_is_run_alone_at_a_new_batch(
    work: Callable[..., Any], runs: MadeUpRuns
) -> None:
    once = work(budget_s=7200)
    runs.files.clear()
    runs.violated = {once.progress.steps + 1}
    result = work(budget_s=7200, tries=2)
    struck = [cell for cell in result.cells if cell.tries == 3]
    assert struck and all(len(set(cell.hits)) == len(cell.hits) == 2 for cell in struck)
    assert result.outcome is Outcome.VIOLATED and result.unclaimed
    runs.files.clear()
    runs.slow = {once.progress.steps + 1: 7200.0}
    ended = work(budget_s=7200, tries=2)
    left = [cell for cell in ended.cells if cell.together]
    assert left
    for cell in left:
        (alone,) = load(ended.directory.cells / f"{cell.name}.yaml").chaos
        assert alone.at.batch not in cell.hits, "it held there"
