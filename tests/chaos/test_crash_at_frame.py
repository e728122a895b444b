"""Crash at a frame: where it can be placed. That it bites, and is proven, is shown by the real scenarios."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onceproof.faults import Fault, Occurrence, SpecProblem, faults, reads_frames, strikes_at
from onceproof.points import Point
from onceproof.scenario.model import Scenario

Problems = Callable[..., list[SpecProblem]]


def spec(point: str = "in-tasks", service: str = "postgres", **more: Any) -> dict[str, Any]:
    at = {"batch": 2, "point": point}
    return {"fault": "crash-at-frame", "target": "driver", "service": service, "at": at, **more}


@pytest.mark.parametrize("point", ["in-tasks", "before-sink-commit", "between-sinks"])
def test_a_driver_can_die_while_it_writes(problems: Problems, point: str) -> None:
    assert problems(spec(point)) == []
    assert problems(spec(point, "kafka", frame={"kind": "Produce", "topic": "out", "nth": 2})) == []


def test_what_is_lost_is_not_a_crash(problems: Problems) -> None:
    assert problems(spec("commit-lost"))[0].loc == ("at", "point")


def test_a_frame_that_can_never_be_is_refused_where_it_stands(problems: Problems) -> None:
    (problem,) = problems(spec(), postgres=False)
    assert problem.loc == ("service",) and "postgres: {}" in (problem.hint or "")
    (problem,) = problems(spec(frame={"kind": "Produce"}))
    assert problem.loc == ("frame", "kind")
    (problem,) = problems(spec(frame={"kind": "Prodcue"}))
    assert problem.loc == ("frame",) and "Produce" in (problem.hint or "")


def test_it_is_armed_when_the_batch_is_planned(
    fault: Callable[[dict[str, Any]], Fault], seen: Callable[..., Occurrence]
) -> None:
    crash = fault(spec("between-sinks"))
    assert crash.matches(seen(Point.AFTER_OFFSET_LOG, "checkpoint")) and not crash.matches(seen(Point.BETWEEN_SINKS))
    one = faults.get("crash-at-frame").Spec.model_validate(spec())
    assert reads_frames([one]) and strikes_at(one) is Point.AFTER_OFFSET_LOG


def test_the_plan_says_what_proves_it(scenario: Callable[..., Scenario]) -> None:
    kind = faults.get("crash-at-frame")
    placed = {p: kind.placement(kind.Spec.model_validate(spec(p)), scenario()) for p in ("in-tasks", "between-sinks")}
    assert {p.exactness for p in placed.values()} == {"exact"}
    assert "in a sink by then" in placed["between-sinks"].proof and "by then" not in placed["in-tasks"].proof
