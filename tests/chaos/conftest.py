"""Specs and scenarios for tests of fault kinds that start no service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onceproof.faults.contract import Fault, Occurrence, SpecProblem, fault_of, faults
from onceproof.scenario.kinds import model_of
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.scenario_files.explain import validate


@pytest.fixture
def scenario() -> Callable[..., Scenario]:
    def make(
        *, brokers: int = 3, postgres: bool = True, object_store: dict[str, Any] | None = None, **pipeline: Any
    ) -> Scenario:
        return Scenario.model_validate(
            {
                "name": "made-for-a-test",
                "stack": {
                    "kafka": {"brokers": brokers},
                    "postgres": {} if postgres else None,
                    "object_store": object_store,
                },
                "input": [{"topic": "flights", "dataset": "flights", "partitions": 2}],
                "pipeline": {"command": ["true"], "prepare": {"topics": {"out": {"partitions": 3}}}} | pipeline,
                "outputs": {"out": {"topic": "out", "identity": ["id"]}},
                "oracle": {"kind": "sql", "queries": {}},
            }
        )

    return make


@pytest.fixture
def problems(
    scenario: Callable[..., Scenario], problems_of: Callable[[dict[str, Any], Scenario], list[SpecProblem]]
) -> Callable[..., list[SpecProblem]]:
    def find(spec: dict[str, Any], **stack: Any) -> list[SpecProblem]:
        return problems_of(spec, scenario(**stack))

    return find


@pytest.fixture
def problems_of() -> Callable[[dict[str, Any], Scenario], list[SpecProblem]]:
    """What is wrong with a fault as a scenario file has it: its model's complaints, else its problems in the scenario."""

    def find(values: dict[str, Any], scenario: Scenario) -> list[SpecProblem]:
        model = model_of(faults, "fault", values)
        assert model is not None
        spec, complaints = validate(model, values)
        if spec is None:
            return [SpecProblem(each.loc, each.message, each.hint) for each in complaints]
        return fault_of(spec).problems(spec, scenario)

    return find


@pytest.fixture
def spec_of() -> Callable[[dict[str, Any]], FaultSpec]:
    def make(values: dict[str, Any]) -> FaultSpec:
        model = model_of(faults, "fault", values)
        assert model is not None
        spec: FaultSpec = model.model_validate(values)
        return spec

    return make


@pytest.fixture
def fault(spec_of: Callable[[dict[str, Any]], FaultSpec]) -> Callable[[dict[str, Any]], Fault]:
    def make(values: dict[str, Any]) -> Fault:
        spec = spec_of(values)
        return fault_of(spec)(spec)

    return make


@pytest.fixture
def seen() -> Callable[..., Occurrence]:
    def make(point: Point, instrument: Any = "watcher", sink: str = "") -> Occurrence:
        return Occurrence("q", 2, point, instrument, sink)

    return make
