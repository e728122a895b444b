"""Windows of a job with several queries: the timeline decides to which cell a batch belongs; without it nothing is guessed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from onceproof.base.timeline import Event
from onceproof.faults.evidence.item import Evidence
from onceproof.judge.findings import BatchReport, Finding, Outcome, StatedClaim, Verdict
from onceproof.qualify.attribution import attribute
from onceproof.qualify.cells import Cell, CellState
from onceproof.qualify.schedule import RunStep, step
from onceproof.qualify.windows import Windows, windows
from onceproof.scenario.points import Point

GATE = {0: "checkpoint", 1: "checkpoint", 2: "checkpoint"}


@pytest.fixture
def two() -> RunStep:
    """The driver killed at batch 2 of one query and at batch 4 of the other."""
    crash = Cell("crash-a", "crash", Point.AFTER_SINK_COMMIT, {"target": "driver"}, query="a")
    return step([crash, replace(crash, name="crash-b", query="b")], {"flights": 6000})


def timeline(*lag: int, fired: tuple[tuple[int, float], ...] = ((0, 2.5), (1, 4.5))) -> list[Event]:
    """Return a timeline with six batches of each query, one per second, committed at n + 0.6; b lags ``lag`` behind."""
    behind = lag[0] if lag else 0
    events = [Event(at, "fault.fired", {"index": index}) for index, at in fired]
    for query, late in (("a", 0), ("b", behind)):
        for batch in range(6):
            at = float(batch + late)
            batch_of = {"query": query, "batch": batch}
            events.append(Event(at + 0.1, "batch.planned", batch_of))
            events.append(Event(at + 0.6, "batch.committed", {**batch_of, "records": 9}))
    return sorted(events, key=lambda event: event.at)


def test_each_query_has_windows_of_its_own(two: RunStep) -> None:
    seen = windows(timeline(), two)
    assert seen.first == seen.may == {"a": [2, 4], "b": [2, 4]}
    late = windows(timeline(1, fired=((0, 2.5), (1, 5.5))), two)
    assert late.first == late.may == {"a": [2, 5], "b": [1, 4]} and late.ordered


def test_a_fault_that_never_fired_counts_from_the_plan_of_its_batch(two: RunStep) -> None:
    assert windows(timeline(fired=((0, 2.5),)), two).first == {"a": [2, 4], "b": [2, 4]}
    end = windows(timeline(fired=((0, 9.0), (1, 9.5))), two)
    assert end.first == {"a": [2, math.inf], "b": [math.inf, 4]}


def test_windows_that_queries_pass_in_different_orders_are_not_ordered(two: RunStep) -> None:
    assert not windows(timeline(fired=((0, 4.7), (1, 2.5))), two).ordered
    assert not Windows({"a": [2, 2]}, {}).ordered
    assert Windows({"a": [2, math.inf], "b": [math.inf, math.inf]}, {}).ordered


@pytest.fixture
def verdict() -> Callable[..., Verdict]:
    def build(of: RunStep, found: str | None = None) -> Verdict:
        from onceproof.judge.findings import FaultReport

        wrong = (Finding("duplicate", "out", 3, "three", source="batch replay", batches={found: 3}),) if found else ()
        batches = tuple(
            BatchReport(
                query, n, 0, 0, 9, (), Outcome.VIOLATED if f"{query}/{n}" == found else Outcome.HELD, {"duplicate": 3}
            )
            for query in ("a", "b")
            for n in range(6)
        )
        faults = tuple(
            FaultReport(
                cell.kind, cell.target, str(cell.query), batch, cell.point, True, True, True, (Evidence("seen"),)
            )
            for cell, batch in zip(of.cells, of.batches, strict=True)
        )
        outcome = Outcome.VIOLATED if found else Outcome.HELD
        return Verdict(
            "s", outcome, StatedClaim({"delivery": "effectively-once"}), ("fine",), wrong, faults, batches=batches
        )

    return build


def test_a_batch_of_another_query_belongs_to_the_last_fault_before_its_commit(
    two: RunStep, verdict: Callable[..., Verdict]
) -> None:
    seen = windows(timeline(1, fired=((0, 2.5), (1, 5.5))), two)
    for found, cell in (("b/1", 0), ("b/3", 0), ("a/4", 0), ("b/4", 1), ("a/5", 1)):
        cells = attribute(two, verdict(two, found), GATE, "r", seen)
        assert [c.verdict for c in cells] == [Outcome.VIOLATED if n == cell else Outcome.HELD for n in (0, 1)], found
    early = attribute(two, verdict(two, "b/0"), GATE, "r", seen)
    assert all(c.alone and "before the first fault" in str(c.why) for c in early)


def test_unordered_windows_decide_only_if_nothing_is_violated(two: RunStep, verdict: Callable[..., Verdict]) -> None:
    crossed = windows(timeline(fired=((0, 4.7), (1, 2.5))), two)
    held = attribute(two, verdict(two), GATE, "r", crossed)
    assert [(c.state, c.verdict) for c in held] == [(CellState.EXERCISED, Outcome.HELD)] * 2
    for found in ("a/2", "a/4", "b/4"):
        cells = attribute(two, verdict(two, found), GATE, "r", crossed)
        assert all(c.alone and c.verdict is None and "one order" in str(c.why) for c in cells), found


def test_a_batch_of_the_other_query_committed_just_before_the_fault_may_belong_to_either_cell(
    two: RunStep, verdict: Callable[..., Verdict]
) -> None:
    both = RunStep((two.cells[0], replace(two.cells[0], name="crash-a-again")), two.batches, two.chunks)
    quick = windows(
        timeline(fired=((0, 2.5), (1, 4.8))), both
    )  # batch 4 of b was committed at 4.6, and its effect was not yet durable
    lost = attribute(both, verdict(both, "b/4"), GATE, "r", quick)
    assert all(c.alone and c.verdict is None and "batch b/4 " in str(c.why) for c in lost)
    for found, cell in (("b/3", 0), ("b/5", 1), ("a/4", 1)):
        cells = attribute(both, verdict(both, found), GATE, "r", quick)
        assert [c.verdict for c in cells] == [Outcome.VIOLATED if n == cell else Outcome.HELD for n in (0, 1)], found


def test_the_batch_before_a_fault_at_its_offset_log_may_belong_to_either_cell(
    two: RunStep, verdict: Callable[..., Verdict]
) -> None:
    early = replace(two.cells[0], name="crash-early", point=Point.BEFORE_OFFSET_LOG)
    both = RunStep((two.cells[0], early), two.batches, two.chunks)
    for seen in (windows(timeline(fired=((0, 2.5), (1, 4.05))), both), None):
        lost = attribute(both, verdict(both, "a/3"), GATE, "r", seen)
        assert all(c.alone and c.verdict is None and "batch a/3 " in str(c.why) for c in lost)
        struck = attribute(both, verdict(both, "a/2"), GATE, "r", seen)
        assert [c.verdict for c in struck] == [Outcome.VIOLATED, Outcome.HELD]
