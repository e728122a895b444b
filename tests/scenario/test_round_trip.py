"""A scenario survives a round trip through JSON, its faults and its oracle with the models of their kinds."""

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
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find, names


@pytest.mark.parametrize("name", names())
def test_every_shipped_scenario_survives_a_round_trip(name: str) -> None:
    scenario = load(find(name)).model_copy(update={"base": None})  # a stored scenario has its base merged in
    stored = json.loads(json.dumps(scenario.to_json()))
    again = Scenario.model_validate(stored)
    assert again == scenario
    assert [type(fault) for fault in again.chaos] == [type(fault) for fault in scenario.chaos]
    assert type(again.oracle) is oracles.get(scenario.oracle.kind).Spec
    assert StoredScenario.of(scenario).parsed(Path()) == scenario


def stored(**changes: object) -> dict[str, object]:
    return {**load(find("effectively-once")).to_json(), **changes}


def test_a_fault_of_a_job_and_one_of_consumers_may_share_a_name() -> None:
    job, consumers = load(find("effectively-once")), load(find("amqp-redelivery-reorders"))
    assert job.chaos[0].fault == consumers.chaos[0].fault == "crash"
    assert type(job.chaos[0]) is faults.get("crash", "driver").Spec is not type(consumers.chaos[0])


def test_an_unknown_kind_is_reported_with_the_nearest_known_one() -> None:
    with pytest.raises(ValidationError, match="unknown oracle 'sqll' \\(did you mean 'sql'\\?\\)"):
        Scenario.model_validate(stored(oracle={"kind": "sqll"}))
    with pytest.raises(HistoryError, match=r"cannot be used: chaos\.0\.fault: unknown fault 'crsh'"):
        StoredScenario.model_validate(stored(chaos=[{"fault": "crsh"}])).parsed(Path())


def test_a_run_can_be_judged_without_its_kinds_of_faults() -> None:
    """The history holds what a fault did, so the judge does not need the package that implements it."""
    kept = StoredScenario.model_validate(stored(chaos=[{"fault": "of another package"}]))
    assert kept.parsed(Path(), with_faults=False).chaos == []


def test_a_stored_fault_of_an_earlier_version_has_nulls_for_the_settings_of_other_targets() -> None:
    at = {"query": None, "batch": 2, "point": "before-sink-commit", "attempt": 1}
    frame = {"service": None, "kind": "commit"}
    old = {"fault": "crash", "target": "postgres", "at": at, "leader_of": None, "in_sync": None, "frame": frame}
    (fault,) = StoredScenario.model_validate(stored(chaos=[old])).parsed(Path()).chaos
    assert isinstance(fault, faults.get("crash", "postgres").Spec)
    with pytest.raises(ValidationError, match="leader_of"):
        Scenario.model_validate(stored(chaos=[old]))  # a file with that name in it is wrong
