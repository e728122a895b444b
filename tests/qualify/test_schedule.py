from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from onceproof.faults.evidence.item import Evidence
from onceproof.judge.findings import FaultReport, Outcome, StatedClaim, Verdict
from onceproof.qualify.cells import Cell, CellState
from onceproof.qualify.schedule import (
    APART,
    MOST,
    MOST_EMPTY,
    Pace,
    needed_s,
    next_step,
    repeat_step,
    retry_where_nothing_was_in_danger,
    step,
)
from onceproof.scenario.points import Point

PACE = Pace(base_s=10, cell_s=10)
ROWS = {"in": 6000}


def pending(count: int) -> list[Cell]:
    return [Cell(f"crash-{n}", "crash", Point.AFTER_SINK_COMMIT) for n in range(count)]


@given(st.integers(1, 12), st.integers(2, 20_000), st.integers(2, 20_000))
def test_every_fault_gets_a_batch_that_is_reached_and_has_data(cells: int, rows: int, others: int) -> None:
    chosen = next_step(pending(cells), {"a": rows, "b": others}, pace=PACE, left_s=1e6)
    assert chosen is not None
    assert 1 <= len(chosen.cells) <= MOST
    assert chosen.batches[0] >= 1
    assert all(after - before == APART for before, after in zip(chosen.batches, chosen.batches[1:], strict=False))
    assert max(chosen.chunks.values()) > chosen.batches[-1]
    assert chosen.chunks["a"] <= rows and chosen.chunks["b"] <= others


def test_cells_share_a_run_unless_they_need_one_alone() -> None:
    cells = pending(4)
    cells[1] = replace(cells[1], alone=True)
    rows = {"a": 6000}
    chosen = next_step(cells, rows, pace=PACE, left_s=1e6)
    assert chosen is not None and [c.name for c in chosen.cells] == ["crash-0", "crash-2", "crash-3"]
    rest = [cells[1], *(replace(c, state=CellState.EXERCISED) for c in chosen.cells)]
    last = next_step(rest, rows, pace=PACE, left_s=1e6)
    assert last is not None and [c.name for c in last.cells] == ["crash-1"] and not last.shared


def test_the_budget_limits_the_cells_of_a_run_and_then_ends_the_qualification() -> None:
    cells, rows = pending(6), {"a": 6000}
    chosen = next_step(cells, rows, pace=PACE, left_s=35)
    assert chosen is not None and len(chosen.cells) == 2
    assert next_step(cells, rows, pace=PACE, left_s=19) is None


def test_cells_that_were_never_run_come_before_cells_that_need_a_run_alone() -> None:
    cells = [replace(cell, alone=index < 3) for index, cell in enumerate(pending(6))]
    chosen = next_step(cells, {"a": 6000}, pace=PACE, left_s=1e6)
    assert chosen is not None and [c.name for c in chosen.cells] == ["crash-3", "crash-4", "crash-5"]


def test_a_quicker_fault_uses_the_rest_of_the_budget() -> None:
    stall, crash = Cell("stall", "stall", Point.AFTER_SINK_COMMIT, {"target": "driver"}), pending(1)[0]
    pace = replace(PACE, cell_s=60, of_fault={"stall driver": 90, "crash": 12})
    alone = [replace(stall, alone=True), replace(crash, alone=True)]
    chosen = next_step(alone, {"a": 6000}, pace=pace, left_s=25)
    assert chosen is not None and [c.name for c in chosen.cells] == ["crash-0"]
    assert next_step(alone, {"a": 6000}, pace=pace, left_s=21) is None
    assert needed_s(alone, pace) == 22 and needed_s([], pace) is None


def test_without_pending_cells_there_is_no_next_run() -> None:
    done = [replace(cell, state=CellState.EXERCISED) for cell in pending(2)]
    assert next_step(done, {"a": 6000}, pace=PACE, left_s=1e6) is None


@given(st.integers(1, 20), st.integers(1, 4))
def test_each_repetition_of_a_cell_strikes_another_batch(count: int, tries: int) -> None:
    held = [replace(c, state=CellState.EXERCISED, verdict=Outcome.HELD) for c in pending(count)]
    cells: dict[str, Cell] = {}
    for start in range(0, count, MOST):  # as their first runs left them
        for cell, batch in zip(held[start : start + MOST], step(held[start : start + MOST], ROWS).batches, strict=True):
            cells[cell.name] = replace(cell, runs=("r",), hits=(batch,))
    steps = 0
    while (chosen := repeat_step(list(cells.values()), ROWS, tries=tries, pace=PACE, left_s=1e6)) is not None:
        steps += 1
        assert list(chosen.batches) == sorted(set(chosen.batches)) and len(chosen.cells) <= MOST
        for cell, batch in zip(chosen.cells, chosen.batches, strict=True):
            cells[cell.name] = replace(cell, runs=(*cell.runs, "r"), hits=(*cell.hits, batch))
    assert {len(set(cell.hits)) for cell in cells.values()} == {tries}
    assert steps == (tries - 1) * -(-count // MOST)


def test_only_held_cells_are_repeated_and_those_that_miss_not_for_ever() -> None:
    held, missing, violated, waiting = pending(4)
    held = replace(held, state=CellState.EXERCISED, verdict=Outcome.HELD, runs=("r",), hits=(2,))
    missing = replace(held, name="missing", runs=("r",) * (MOST_EMPTY + 1))
    violated = replace(held, name="violated", verdict=Outcome.VIOLATED)
    chosen = repeat_step([held, missing, violated, waiting], ROWS, tries=3, pace=PACE, left_s=1e6)
    assert chosen is not None and chosen.cells == (held,)
    assert repeat_step([held], ROWS, tries=3, pace=PACE, left_s=19) is None, "it does not fit into the budget"
    alone = repeat_step([replace(held, alone=True)], ROWS, tries=3, pace=PACE, left_s=1e6)
    assert alone is not None and alone.batches == (4,)


def test_a_small_input_allows_few_cells_per_run() -> None:
    chosen = next_step(pending(6), {"a": 100}, pace=PACE, left_s=1e6)
    assert chosen is not None and len(chosen.cells) == 1
    assert step(pending(1), {"a": 2}).batches == (1,)


def test_faults_strike_at_batches_that_write_in_their_query() -> None:
    one, other = (replace(cell, query=query) for cell, query in zip(pending(2), "ab", strict=True))
    chosen = step([one, other], {"in": 6000}, {"a": 3, "b": 2})
    assert chosen.batches == (3, 4) and chosen.chunks["in"] > 4


def fault(batch: int, *evidence: str, hit: bool = False) -> FaultReport:
    return FaultReport(
        "crash", "driver", "q", batch, "after-sink-commit", True, True, hit, tuple(map(Evidence, evidence))
    )


EMPTY = "batch 2 read no input and wrote nothing: nothing was in danger; choose another batch"


def test_a_cell_whose_batch_had_nothing_in_danger_is_tried_at_another_batch() -> None:
    (cell,) = pending(1)
    struck = []
    for number in range(MOST_EMPTY):
        assert cell.state is CellState.PENDING
        alone = step([cell], {"in": 6000})
        struck.append(alone.batches[0])
        missed = replace(
            cell, state=CellState.NOT_REACHED, alone=True, why="it fired and did not hit", runs=(str(number),)
        )
        verdict = Verdict(
            "s", Outcome.INCONCLUSIVE, StatedClaim(), (), faults=(fault(alone.batches[0], "killed", EMPTY),)
        )
        (cell,) = retry_where_nothing_was_in_danger(alone, [missed], verdict)
    assert struck == [2, 3, 4], "another batch each time"
    assert cell.state is CellState.NOT_REACHED and cell.empty == (2, 3, 4)
    assert TypeAdapter(Cell).validate_python(json.loads(json.dumps(cell.to_json()))) == cell


@pytest.mark.parametrize("report", [fault(2, "the driver was not killed"), fault(2, "batch 2 wrote", hit=True)])
def test_a_cell_that_missed_for_another_reason_or_hit_is_unchanged(report: FaultReport) -> None:
    (cell,) = pending(1)
    tried = replace(cell, state=CellState.NOT_REACHED, alone=True)
    verdict = Verdict("s", Outcome.INCONCLUSIVE, StatedClaim(), (), faults=(report,))
    assert retry_where_nothing_was_in_danger(step([cell], {"in": 6000}), [tried], verdict) == [tried]
