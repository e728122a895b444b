"""Every store implements the contract, and every output finds its store."""

from __future__ import annotations

import pytest

from onceproof.scenario.kinds import store_fields
from onceproof.scenario.model import Scenario
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find, names
from onceproof.stores.contract import store_of, stores


def test_each_store_has_a_field_of_its_own() -> None:
    assert len(set(store_fields())) == len(stores.names())
    for _, store in stores.items():
        assert store.field in store.Spec.model_fields
        assert store.about and store.words.item and store.words.whole
        assert bool(store.words.commit) == bool(store.words.written)


@pytest.mark.parametrize("name", ["effectively-once", "naive-append", "files-append", "delta-append"])
def test_outputs_of_a_stored_scenario_are_read_back_unchanged(name: str) -> None:
    scenario = load(find(name))
    assert Scenario.model_validate(scenario.to_json()).outputs == scenario.outputs


def test_stores_find_no_problem_in_shipped_scenarios() -> None:
    for name in names():
        scenario = load(find(name))
        if scenario.pipeline.consumers is None:
            assert [p for spec in scenario.outputs.values() for p in store_of(spec).problems(scenario, spec)] == []


def test_an_output_in_two_stores_is_refused() -> None:
    stored = load(find("effectively-once")).to_json()
    stored["outputs"] = {"out": {"topic": "t", "table": "t", "identity": ["id"]}}
    with pytest.raises(ValueError, match=r"output 'out' needs one of .*, and has table and topic"):
        Scenario.model_validate(stored)
