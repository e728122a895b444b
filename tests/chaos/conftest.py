"""Specs and scenarios for tests of fault kinds that start no service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onceproof.faults.contract import Fault, Occurrence, SpecProblem, faults
from onceproof.scenario.model import Scenario
from onceproof.scenario.points import Point


@pytest.fixture
def scenario() -> Callable[..., Scenario]:
    def make(*, brokers: int = 3, postgres: bool = True, **pipeline: Any) -> Scenario:
        return Scenario.model_validate(
            {
                "name": "made-for-a-test",
                "stack": {"kafka": {"brokers": brokers}, "postgres": {} if postgres else None},
                "input": [{"topic": "flights", "dataset": "flights", "partitions": 2}],
                "pipeline": {"command": ["true"], "prepare": {"topics": {"out": {"partitions": 3}}}} | pipeline,
                "outputs": {"out": {"topic": "out", "identity": ["id"]}},
                "oracle": {"kind": "sql", "queries": {}},
            }
        )

    return make


@pytest.fixture
def problems(scenario: Callable[..., Scenario]) -> Callable[..., list[SpecProblem]]:
    def find(spec: dict[str, Any], **stack: Any) -> list[SpecProblem]:
        kind = faults.get(spec["fault"])
        return kind.problems(kind.Spec.model_validate(spec), scenario(**stack))

    return find


@pytest.fixture
def fault() -> Callable[[dict[str, Any]], Fault]:
    def make(spec: dict[str, Any]) -> Fault:
        kind = faults.get(spec["fault"])
        return kind(kind.Spec.model_validate(spec))

    return make


@pytest.fixture
def seen() -> Callable[..., Occurrence]:
    def make(point: Point, instrument: Any = "watcher", sink: str = "") -> Occurrence:
        return Occurrence("q", 2, point, instrument, sink)

    return make
