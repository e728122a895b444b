"""From executed schedules to verdicts: which of them are judged, what the judge is told, and how much input there is."""

from __future__ import annotations

from typing import Any, cast

import pytest

from onceproof.explore.outcome import Judge, Judged, _facts, digest, reduced
from onceproof.history.memory import MemoryTables
from onceproof.judge.findings import Outcome
from onceproof.scenario.points import Point
from onceproof.scenario_files.load import find, load_file
from onceproof.warm.attempts import Strike
from onceproof.warm.tier import Executed, WarmTier


def executed(**facts: Any) -> Executed:
    """An execution that wrote one row, and in which one fault struck."""
    tables = MemoryTables()
    row = {"output": "o", "op": "insert", "offset": 0, "commit_order": 0, "content": "a"}
    tables.append("output", [row])
    known = {
        "strikes": (Strike(1, Point.AFTER_SINK_COMMIT),),
        "fired": (1.2,),
        "starts": 2,
        "errors": (),
        "ended": True,
        "outputs": {},
        "wall_start": 100.0,
        "seconds": 0.1,
        "query": "q",
    }
    return Executed(number=1, tables=tables, **{**known, **facts})


class Input:
    """What the judge is told about the input: only its end."""

    ends = {"t": {0: 30}}  # noqa: RUF012


def facts(one: Executed) -> dict[str, Any]:
    return _facts(cast(WarmTier, Input()), one)


@pytest.mark.parametrize(
    ("gave_up", "fired", "stuck"), [(True, (1.2,), True), (True, (), False), (False, (1.2,), False)]
)
def test_a_job_that_never_recovers_from_a_fault_is_stuck(gave_up: bool, fired: tuple[float, ...], stuck: bool) -> None:
    one = executed(fired=fired, gave_up=gave_up, ended=False)
    assert facts(one)["stuck"] is stuck


def test_a_job_that_was_given_up_is_another_outcome_than_one_that_was_too_slow() -> None:
    slow, given_up = executed(ended=False), executed(ended=False, gave_up=True)
    assert digest(slow, cause=False) != digest(given_up, cause=False)


class Counting(Judge):
    """Judges nothing: every outcome held, and the run that shows it is named after the faults that struck."""

    def __init__(self) -> None:
        super().__init__(None, None, None, None)  # type: ignore[arg-type]

    def _judge(self, executed: Executed) -> Judged:
        return Judged(Outcome.HELD, run=", ".join(str(strike.point) for strike in executed.strikes) or "no fault")


def test_the_run_without_faults_is_not_what_is_shown_for_a_schedule_that_held() -> None:
    judge = Counting()
    plain = executed(strikes=(), fired=())
    struck = executed()
    other = executed(strikes=(Strike(1, Point.AFTER_OFFSET_LOG),))
    assert digest(plain, cause=False) == digest(struck, cause=False) == digest(other, cause=False)
    assert [judge.judge(one).run for one in (plain, struck, other)] == ["no fault", *2 * ["after-sink-commit"]]
    assert judge.distinct == 2


@pytest.mark.parametrize(
    ("has", "given", "rows", "chunks"),
    [
        (20, None, 30, (15, 20)),  # the whole data set
        (20, 20, 30, (15, 20)),
        (300, None, 30, (90, 120)),
        (300, 30, 30, (30, 40)),
        (300, None, 1, (3, 4)),
        (4, None, 30, (3, 4)),
    ],
)
def test_no_chunk_of_a_small_data_set_is_empty(has: int, given: int | None, rows: int, chunks: tuple[int, int]) -> None:
    scenario = load_file(find("callable-append")).scenario
    (spec,) = scenario.input
    small = spec.model_copy(update={"dataset": "numbers", "options": {"rows": has}, "rows": given, "chunks": 1})
    (made,) = reduced(scenario.model_copy(update={"input": [small]}), rows, 3).input
    ordinary = (made.rows or 0) * 4 // 3  # one chunk more, as `onceproof.explore.real` has it
    assert (made.chunks, made.rows, ordinary) == (3, *chunks) and ordinary <= has
