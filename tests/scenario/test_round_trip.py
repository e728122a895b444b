"""A scenario goes to JSON and comes back the same: its faults and its oracle as the kinds that they name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from onceproof.base.errors import HistoryError
from onceproof.faults.contract import faults
from onceproof.history.run_record import StoredScenario
from onceproof.oracle import oracles
from onceproof.scenario.model import Scenario
from onceproof.scenario_files.load import find, load, names


@pytest.mark.parametrize("name", names())
def test_every_shipped_scenario_comes_back(name: str) -> None:
    scenario = load(find(name)).model_copy(update={"base": None})  # a stored one is whole
    stored = json.loads(json.dumps(scenario.to_json()))
    again = Scenario.model_validate(stored)
    assert again == scenario
    assert [type(fault) for fault in again.chaos] == [type(fault) for fault in scenario.chaos]
    assert type(again.oracle) is oracles.get(scenario.oracle.kind).Spec
    assert StoredScenario.of(scenario).parsed(Path()) == scenario


def stored(**changes: object) -> dict[str, object]:
    return {**load(find("effectively-once")).to_json(), **changes}


def test_faults_of_a_job_and_of_consumers_may_have_one_name() -> None:
    job, consumers = load(find("effectively-once")), load(find("amqp-redelivery-reorders"))
    assert job.chaos[0].fault == consumers.chaos[0].fault == "crash"
    assert type(job.chaos[0]) is faults.get("crash").Spec is not type(consumers.chaos[0])


def test_an_unknown_kind_is_named_with_what_is_near() -> None:
    with pytest.raises(ValidationError, match="unknown oracle 'sqll' \\(did you mean 'sql'\\?\\)"):
        Scenario.model_validate(stored(oracle={"kind": "sqll"}))
    with pytest.raises(HistoryError, match=r"cannot be used: chaos\.0\.fault: unknown fault 'crsh'"):
        StoredScenario.model_validate(stored(chaos=[{"fault": "crsh"}])).parsed(Path())


def test_judging_needs_no_kind_of_fault() -> None:
    """A run of a kind that is gone, or was never installed here, can be judged: what it did is in the history."""
    kept = StoredScenario.model_validate(stored(chaos=[{"fault": "of another package"}]))
    assert kept.parsed(Path(), with_faults=False).chaos == []
