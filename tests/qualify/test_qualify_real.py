"""A real qualification: two cells share a run, one is violated and one held, each by the findings in its own window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onceproof.cli.output import Output
from onceproof.faults.job import Job
from onceproof.history.run_record import RunRecord
from onceproof.judge.findings import Outcome
from onceproof.qualify import matrix, session
from onceproof.qualify.cells import Cell, CellState
from onceproof.qualify.console import ProgressOnConsole
from onceproof.scenario.model import Scenario
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find
from onceproof.stack.sharing.shared import SharedStack

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

#: One leaves a sink behind that has committed, the other one that has not.
TWO = ["crash-driver-after-sink-commit", "crash-driver-after-offset-log"]


@pytest.fixture
def two_cells(monkeypatch: pytest.MonkeyPatch) -> list[list[Cell]]:
    """Computes the whole matrix of this job, of which the session tries two cells."""
    whole: list[list[Cell]] = []
    all_of = session.cells

    def chosen(job: Job, scenario: Scenario, *more: Any) -> list[Cell]:
        whole.append(all_of(job, scenario, *more))
        return [cell for cell in whole[-1] if cell.name in TWO]

    monkeypatch.setattr(session, "cells", chosen)
    return whole


def test_a_duplicate_of_a_plain_append_is_found_in_the_window_of_its_fault(
    two_cells: list[list[Cell]], tmp_path: Path
) -> None:
    directory, progress = session.begin(find("foreign-jdbc-append"), runs_dir=tmp_path, seed=None)
    console = Output(as_json=True).console()
    with (
        SharedStack(protocol_proxy=True) as shared,
        ProgressOnConsole(console, progress.scenario, 3600) as listener,
    ):
        result = session.Session(directory, progress, budget_s=3600, tries=1, listener=listener, shared=shared).work()
    text = matrix.as_text(result)

    (whole,) = two_cells
    reachable = {f"{cell.kind} {cell.point}" for cell in whole if cell.reachable}
    assert reachable >= {"lost-ack commit-unacknowledged", "lost-request commit-lost", "reject after-offset-log"}
    assert "COMMIT of departures" in {cell.words for cell in whole}

    assert result.outcome is Outcome.VIOLATED, text
    appended, planned = (next(cell for cell in result.cells if cell.name == name) for name in TWO)
    assert (appended.state, appended.verdict, list(appended.anomalies)) == (
        CellState.EXERCISED,
        Outcome.VIOLATED,
        ["duplicate"],
    ), text
    assert appended.outputs == ("departures_table",)
    assert (planned.state, planned.verdict) == (CellState.EXERCISED, Outcome.HELD), text
    assert appended.runs == planned.runs, "they shared one run"
    assert result.strongest is not None and result.strongest.delivery == "at-least-once"
    assert [spec.at.point for spec in load(directory.cells / f"{TWO[0]}.yaml").chaos] == ["after-sink-commit"]
    stored = json.loads((directory.path / "qualification.json").read_text())
    assert stored["ended"] == "done" and stored["steps"] == 2
    uses = [RunRecord.read(run).shared_stack for run in directory.runs.iterdir() if not run.is_symlink()]
    assert sorted(use.served_before or 0 for use in uses if use is not None) == [0, 1] and shared.starts == 1
