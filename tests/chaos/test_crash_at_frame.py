"""Crash at a frame: where it can be placed. The real scenarios show its effect and its proof."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.chaos.crash_at_frame import _other_places
from onceproof.faults.contract import Fault, Occurrence, SpecProblem, faults, reads_frames, strikes_at
from onceproof.instruments.proxy.frames import Frame
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.points import Point
from onceproof.stores.frames import frames_of

Problems = Callable[..., list[SpecProblem]]


def spec(point: str = "in-tasks", service: str = "postgres", **more: Any) -> dict[str, Any]:
    at = {"batch": 2, "point": point}
    return {"fault": "crash-at-frame", "target": "driver", "service": service, "at": at, **more}


@pytest.mark.parametrize("point", ["in-tasks", "before-sink-commit", "between-sinks"])
def test_a_driver_can_die_while_it_writes(problems: Problems, point: str) -> None:
    assert problems(spec(point)) == []
    assert problems(spec(point, "kafka")) == []


@pytest.mark.parametrize(
    ("service", "frame", "key"),
    [
        ("kafka", {"kind": "Produce", "topic": "out", "nth": 2}, "kind"),
        ("kafka", {"kind": "EndTxn", "committed": False}, "committed"),
        ("postgres", {"kind": "statement", "sql": "INSERT"}, "kind"),
    ],
)
def test_before_sink_commit_needs_a_commit_frame_and_other_points_take_any_frame(
    problems: Problems, service: str, frame: dict[str, Any], key: str
) -> None:
    (problem,) = problems(spec("before-sink-commit", service, frame=frame))
    assert (
        problem.loc == ("frame", key) and "everything is staged" in problem.message and "in-tasks" in str(problem.hint)
    )
    for point in ("in-tasks", "between-sinks"):
        assert problems(spec(point, service, frame=frame)) == []


def frame(**facts: Any) -> Frame:
    return Frame(b"", "any", facts)


def test_between_sinks_compares_only_the_other_outputs_of_the_query(
    scenario: Callable[..., Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = {"identity": ["id"]}
    made = scenario()
    outputs = {
        "t": {"topic": "out", "query": "q"},
        "a": {"table": "public.a", "query": "q"},
        "b": {"table": "b", "query": "q"},
        "other": {"table": "c", "query": "another"},
    }
    two = made.model_copy(
        update={"outputs": {name: OutputSpec.model_validate(output | more) for name, more in outputs.items()}}
    )
    checkpoint = SimpleNamespace(queries=lambda: ["q", "another"])
    context: Any = SimpleNamespace(scenario=two, checkpoint=checkpoint, stack=SimpleNamespace(kafka=None))
    monkeypatch.setattr("onceproof.stores.kafka.frames.undecided_topics", lambda _kafka: {"out", "elsewhere"})
    kafka, postgres = frames_of("kafka"), frames_of("postgres")
    assert _other_places(context, "q", kafka, frame(topics=["out"])) == {"table a", "table b"}
    assert _other_places(context, "q", kafka, frame(topics=None)) == {"table a", "table b"}, (
        "EndTxn ends the transaction on the topics in which one is open"
    )
    insert = {"sql": "COMMIT", "transaction": ["INSERT INTO b VALUES (1)", "UPDATE a_progress SET x = 1"]}
    assert _other_places(context, "q", postgres, frame(**insert)) == {"topic out", "table a"}
    assert _other_places(context, "q", postgres, frame(sql="COMMIT", transaction=["SELECT f()"])) == {"topic out"}
    assert _other_places(context, "another", kafka, frame(topics=["out"])) == {"table c"}


def test_commit_lost_is_refused(problems: Problems) -> None:
    assert problems(spec("commit-lost"))[0].loc == ("at", "point")


def test_a_frame_that_can_never_match_is_refused_with_its_place(problems: Problems) -> None:
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


def test_the_plan_names_the_proof(scenario: Callable[..., Scenario]) -> None:
    kind = faults.get("crash-at-frame")
    placed = {p: kind.placement(kind.Spec.model_validate(spec(p)), scenario()) for p in ("in-tasks", "between-sinks")}
    assert {p.exactness for p in placed.values()} == {"exact"}
    assert (
        "another output of its query by then" in placed["between-sinks"].proof
        and "by then" not in placed["in-tasks"].proof
    )
