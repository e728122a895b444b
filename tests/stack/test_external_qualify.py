"""`qualify --stack NAME` of jobs that do not import onceproof, on an external cluster: the results of the embedded stack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceproof.api.qualification import qualify
from onceproof.faults.job import Job
from onceproof.qualify import matrix, session
from onceproof.qualify.cells import Cell, CellState
from onceproof.scenario.model import Scenario
from onceproof.stack.fetch import components
from onceproof.stack.processes.owner import Owner

from ..foreign_cluster import ForeignKafka, ForeignPostgres
from . import secured

pytestmark = [pytest.mark.real, pytest.mark.full, pytest.mark.timeout(900)]

#: Job -> cell -> the anomalies that it has on the embedded stack. All of them share one run.
CELLS: dict[str, dict[str, list[str]]] = {
    "foreign-jdbc-append": {"crash-driver-after-sink-commit": ["duplicate"], "crash-driver-after-offset-log": []},
    "foreign-kafka-sink": {"crash-driver-after-sink-commit": ["duplicate"], "crash-driver-after-offset-log": []},
    "foreign-psycopg-upsert": {
        "crash-driver-after-sink-commit": [],
        "lost-ack-postgres-commit-unacknowledged": [],
    },
}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ForeignKafka, ForeignPostgres]]:
    with Owner() as owner:
        kafka = ForeignKafka(owner, tmp_path_factory.mktemp("kafka"), components.ensure())
        postgres = ForeignPostgres(owner, tmp_path_factory.mktemp("postgres"))
        secured.create_role(postgres)
        yield kafka, postgres


@pytest.mark.parametrize("name", CELLS)
def test_a_foreign_job_has_the_results_of_the_embedded_stack(
    services: tuple[ForeignKafka, ForeignPostgres], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secured.write(tmp_path, *services)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONCEPROOF_STATE_DIR", str(tmp_path / "state"))
    for variable, value in secured.VARIABLES.items():
        monkeypatch.setenv(variable, value)
    whole: list[Cell] = []
    all_of = session.cells

    def chosen(job: Job, scenario: Scenario, *more: Any) -> list[Cell]:
        whole.extend(all_of(job, scenario, *more))
        return [cell for cell in whole if cell.name in CELLS[name]]

    monkeypatch.setattr(session, "cells", chosen)
    before = secured.left_on(*services)
    result = qualify(name, stack="staging", budget="12m", runs_dir=tmp_path / "runs")
    text = matrix.as_text(result)
    found = {cell.name: sorted(cell.anomalies) for cell in result.cells if cell.state is CellState.EXERCISED}
    assert found == CELLS[name], f"{text}\n{[(cell.name, cell.reachable, cell.why) for cell in whole]}"
    servers = [cell for cell in whole if (cell.kind, cell.target) == ("crash", "postgres")]
    assert all(not cell.reachable for cell in servers)
    if "kafka" not in name:
        assert "it needs control of Postgres" in {cell.why for cell in servers}
    if any(CELLS[name].values()):
        assert "--stack staging" in text, "the command that repeats a cell names the stack"
    assert secured.left_on(*services) == before
    stored = (result.directory.path / "qualification.json").read_text(encoding="utf-8")
    assert '"stack": "staging"' in stored and not any(secret in stored for secret in secured.SECRETS)
