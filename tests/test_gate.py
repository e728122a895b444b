"""The gate covers each kind of fault at least once."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.faults.contract import faults
from onceproof.scenario_files.load import find, load, names

from .gate import OF_CONSUMERS, SCENARIOS

pytestmark = pytest.mark.sources  # the tests' scenarios use jobs from the source tree

#: Scenarios from tests/scenarios that the gate runs too.
TEST_SCENARIOS = ["brokers-away"]


def test_each_kind_of_fault_is_in_the_gate() -> None:
    of_spark, of_consumers = set(), set()
    folder = Path(__file__).parent / "scenarios"
    for scenario in [*map(find, SCENARIOS | OF_CONSUMERS), *(folder / f"{name}.yaml" for name in TEST_SCENARIOS)]:
        loaded = load(scenario)
        (of_consumers if loaded.pipeline.kind == "consumers" else of_spark).update(
            fault.fault for fault in loaded.chaos
        )
    assert of_spark == set(faults.names())
    assert of_consumers == set(faults.of("consumers").names())


def test_every_scenario_of_the_gate_exists() -> None:
    assert set(names()) >= SCENARIOS
