"""Lost ack and lost request: where they can be placed, and what fires them. The real scenarios show their effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onceproof.faults.contract import Fault, Occurrence, SpecProblem
from onceproof.scenario.points import Point


def spec(kind: str, target: str = "postgres", **at: Any) -> dict[str, Any]:
    return {"fault": kind, "target": target, "at": {"batch": 2, **at}}


@pytest.mark.parametrize("kind", ["lost-ack", "lost-request"])
def test_the_default_point_is_before_the_sinks_commit(problems: Callable[..., list[SpecProblem]], kind: str) -> None:
    assert problems(spec(kind)) == []
    assert problems(spec(kind, point="after-offset-log"))[0].loc == ("at", "point")


@pytest.mark.parametrize("kind", ["lost-ack", "lost-request"])
def test_a_postgres_target_needs_postgres_in_the_stack(problems: Callable[..., list[SpecProblem]], kind: str) -> None:
    assert problems(spec(kind), postgres=False)[0].loc == ("target",)
    assert problems(spec(kind, "kafka"), postgres=False) == []


@pytest.mark.parametrize("kind", ["lost-ack", "lost-request"])
def test_only_a_parked_sink_of_the_target_service_fires_it(
    fault: Callable[[dict[str, Any]], Fault], seen: Callable[..., Occurrence], kind: str
) -> None:
    lost = fault(spec(kind, "kafka"))
    assert lost.matches(seen(Point.BEFORE_SINK_COMMIT, "failpoint", "kafka"))
    assert not lost.matches(seen(Point.BEFORE_SINK_COMMIT, "failpoint", "postgres"))
    assert not lost.matches(seen(Point.BEFORE_SINK_COMMIT, "watcher"))


FRAME_POINT = {"lost-ack": "commit-unacknowledged", "lost-request": "commit-lost"}


@pytest.mark.parametrize("kind", FRAME_POINT)
def test_the_protocol_proxy_places_it_in_any_job(
    problems: Callable[..., list[SpecProblem]],
    fault: Callable[[dict[str, Any]], Fault],
    seen: Callable[..., Occurrence],
    kind: str,
) -> None:
    point = FRAME_POINT[kind]
    assert problems(spec(kind, point=point) | {"frame": {"transaction": "departures"}}) == []
    (other,) = set(FRAME_POINT.values()) - {point}
    assert problems(spec(kind, point=other))[0].loc == ("at", "point")
    lost = fault(spec(kind, point=point))
    assert lost.matches(seen(Point.AFTER_OFFSET_LOG))
    assert not lost.matches(seen(Point.BEFORE_SINK_COMMIT, "failpoint", "postgres"))


@pytest.mark.parametrize("kind", FRAME_POINT)
def test_a_frame_without_effect_or_match_is_refused(problems: Callable[..., list[SpecProblem]], kind: str) -> None:
    assert problems(spec(kind) | {"frame": {}})[0].loc == ("frame",)
    assert problems(spec(kind, point=FRAME_POINT[kind]) | {"frame": {"kind": "EndTxn"}})[0].loc == ("frame", "kind")
    assert problems(spec(kind, point=FRAME_POINT[kind]), postgres=False)[0].loc == ("target",)


@pytest.mark.parametrize("kind", FRAME_POINT)
def test_a_silent_connection_needs_a_frame(problems: Callable[..., list[SpecProblem]], kind: str) -> None:
    assert problems(spec(kind, point=FRAME_POINT[kind]) | {"cut": "silence"}) == []
    assert problems(spec(kind) | {"cut": "silence"})[0].loc == ("cut",)
