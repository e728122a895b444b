"""What the gate leaves to `tox -e full` is repetition: each kind of fault is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.faults.contract import faults
from onceproof.scenario_files.load import find, load, names

from .gate import SCENARIOS

pytestmark = pytest.mark.sources  # the scenarios of the tests name jobs of the sources

#: Scenarios of the tests that the gate runs as well.
OURS = ["brokers-away"]


def test_each_kind_of_fault_is_in_the_gate() -> None:
    of_spark, of_consumers = set(), set()
    for scenario in [*map(find, SCENARIOS), *(Path(__file__).parent / f"scenarios/{name}.yaml" for name in OURS)]:
        loaded = load(scenario)
        (of_consumers if loaded.pipeline.kind == "consumers" else of_spark).update(
            fault.fault for fault in loaded.chaos
        )
    assert of_spark == set(faults.names())
    assert of_consumers == set(faults.of("consumers").names())


def test_what_the_gate_names_is_there() -> None:
    assert set(names()) >= SCENARIOS
