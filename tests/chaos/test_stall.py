"""Stall: where it can be placed. The real scenarios show its effect and its proof."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onceproof.chaos.stall.driver import DriverStall, DriverStallSpec
from onceproof.faults.contract import SpecProblem, fault_of
from onceproof.faults.evidence.sink_state import changes
from onceproof.faults.table import Armed

Problems = Callable[..., list[SpecProblem]]


def spec(point: str, batch: int = 2) -> dict[str, Any]:
    return {"fault": "stall", "target": "driver", "at": {"batch": batch, "point": point}}


@pytest.mark.parametrize("point", ["after-offset-log", "before-sink-commit", "after-sink-commit"])
def test_a_driver_can_be_stopped_while_its_batch_is_open(problems: Problems, point: str) -> None:
    assert problems(spec(point)) == []


@pytest.mark.parametrize("point", ["after-commit-log", "before-offset-log", "in-tasks"])
def test_a_point_at_which_the_driver_has_nothing_left_to_write_is_refused(problems: Problems, point: str) -> None:
    (problem,) = problems(spec(point))
    assert problem.loc == ("at", "point") and "after-offset-log" in (problem.hint or "")


def test_the_second_driver_must_have_a_batch_left(problems: Problems) -> None:
    assert problems(spec("after-offset-log", batch=8)) == []  # ten chunks
    (problem,) = problems(spec("after-offset-log", batch=9))
    assert problem.loc == ("at", "batch") and "batch 8 or earlier" in (problem.hint or "")


def test_a_stall_needs_no_input_before_it_strikes() -> None:
    stall = DriverStall(DriverStallSpec.model_validate(spec("after-offset-log")))
    assert not stall.needs_input
    assert not Armed(0, stall._spec, stall).in_progress and fault_of(stall._spec) is DriverStall


def test_changes_lists_the_tables_and_topics_that_differ() -> None:
    before = {"table a": "1 rows", "table b": "2 rows"}
    assert changes(before, before) == []
    assert changes(before, {**before, "table b": "3 rows", "topic t": "empty"}) == [
        "table b: 2 rows -> 3 rows",
        "topic t: missing -> empty",
    ]
