"""`explore` of pipelines given as functions: warm schedules, and ordinary runs that must agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.api.exploration import BATCHES, Wanted, explore
from onceproof.explore import session
from onceproof.explore.exploration import State
from onceproof.explore.result import Exploration
from onceproof.explore.schedules import ORDER
from onceproof.judge.findings import Outcome
from onceproof.scenario.points import Point
from onceproof.scenario_files.shipped import folder

pytestmark = pytest.mark.real


def violated_at(result: Exploration) -> set[Point]:
    return {faults[0].point for faults, found in result.results.items() if found.state is State.VIOLATED}


@pytest.mark.full
def test_a_naive_append_is_violated_exactly_where_a_replay_writes_again(tmp_path: Path) -> None:
    result = explore("callable-naive-append", Wanted("singles"), budget="6m", runs_dir=tmp_path)
    assert len(result.results) == len(result.wanted) == len(ORDER) * len(BATCHES)
    assert violated_at(result) == {Point.AFTER_SINK_COMMIT}
    assert all(found.hit for found in result.results.values())
    assert all(one.agrees for one in result.confirmations) and result.confirmed()
    assert {anomaly for one in result.confirmed() for anomaly in one.real.anomalies} == {"duplicate"}
    assert result.outcome() is Outcome.VIOLATED
    again = explore(go_on=result.directory.path, budget="60s")
    assert again.results == result.results and again.warm_done == 0


@pytest.mark.full
def test_a_shipped_sink_holds_everywhere(tmp_path: Path) -> None:
    result = explore("callable-append", Wanted("singles"), budget="6m", runs_dir=tmp_path)
    assert {found.state for found in result.results.values()} == {State.HELD}
    assert result.distinct < len(result.results)  # the judge saw equal outcomes once
    assert result.outcome() is Outcome.HELD, result.confirmations


def test_a_sink_that_remembers_only_in_memory_does_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs with real kills: of the violation, and of one schedule that held (the other tests leave the sample as it is)."""
    monkeypatch.setattr(session, "_CLEAN_SAMPLE", 1 / (len(ORDER) * len(BATCHES)))
    scenario = tmp_path / "remembered.yaml"
    jobs = folder() / "jobs"
    scenario.write_text(
        f"base: callable-append\npipeline: {{callable: '{jobs}/departures_callable.py:remembered_in_memory'}}\n"
    )
    result = explore(scenario, Wanted("singles"), budget="2m", runs_dir=tmp_path / "runs")
    assert violated_at(result) == {Point.AFTER_SINK_COMMIT}
