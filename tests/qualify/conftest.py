"""Fixtures: a job as its first run shows it, verdicts on shared runs, and sessions with made-up runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onceproof.faults.evidence.item import Evidence
from onceproof.faults.job import Job, Query
from onceproof.judge.findings import BatchReport, FaultReport, Finding, Outcome, StatedClaim, Verdict
from onceproof.kinds.command import Command
from onceproof.qualify import session
from onceproof.qualify.cells import Cell, cells
from onceproof.qualify.schedule import RunStep, step
from onceproof.qualify.session import Session, begin, resume
from onceproof.scenario.model import Scenario
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find
from onceproof.stores.frames import Sink

from .made_up import PATH, MadeUpRuns, Quiet

TABLE = Sink(
    "postgres",
    "last_seen",
    {"transaction": "last_seen"},
    "COMMIT of last_seen",
    "last_seen",
    write={"kind": "statement", "sql": "last_seen", "nth": 2},
)


@pytest.fixture(scope="session")
def upsert() -> Scenario:
    return load(find("foreign-psycopg-upsert"))


@pytest.fixture
def job() -> Job:
    return Job((Query("last_seen", 6),), (TABLE,))


@pytest.fixture
def matrix(job: Job, upsert: Scenario) -> list[Cell]:
    return cells(job, upsert)


@pytest.fixture
def three(matrix: list[Cell]) -> RunStep:
    """The first three cells of the matrix in one run, at batches 2, 4 and 6."""
    return step(matrix[:3], {"flights": 6000})


@pytest.fixture
def verdict_on() -> Callable[..., Verdict]:
    """Builds the verdict on a run: ``missed`` faults, and ``found`` as anomaly -> batch -> number of effects."""

    def build(
        ran: RunStep,
        *,
        missed: tuple[int, ...] = (),
        found: Mapping[str, Mapping[int, int]] | None = None,
        unplaced: int = 0,
        conclusive: bool = True,
    ) -> Verdict:
        findings = tuple(
            Finding(
                anomaly,
                "last_seen",
                sum(spread.values()) + unplaced,
                "a summary",
                source="batch replay",
                batches={f"last_seen/{batch}": effects for batch, effects in spread.items()},
            )
            for anomaly, spread in (found or {}).items()
        )
        clear = conclusive and not unplaced
        batches = []
        for number in range(ran.batches[-1] + 2):
            anomalies = {name: spread[number] for name, spread in (found or {}).items() if number in spread}
            outcome = Outcome.VIOLATED if anomalies else Outcome.HELD if clear else Outcome.INCONCLUSIVE
            batches.append(BatchReport("last_seen", number, 0, 0, 100, (), outcome, anomalies))
        faults = tuple(
            FaultReport(
                cell.kind,
                cell.target,
                "last_seen",
                batch,
                cell.point,
                True,
                True,
                index not in missed,
                (Evidence("it was seen"),),
            )
            for index, (cell, batch) in enumerate(zip(ran.cells, ran.batches, strict=True))
        )
        outcome = Outcome.VIOLATED if findings else Outcome.INCONCLUSIVE if missed or not conclusive else Outcome.HELD
        reasons = ("fine",) if outcome is Outcome.HELD else ("first reason\nsecond line",)
        return Verdict(
            "small",
            outcome,
            StatedClaim({"delivery": "effectively-once"}),
            reasons,
            findings,
            faults,
            batches=tuple(batches),
        )

    return build


@pytest.fixture
def alone() -> Callable[[RunStep], RunStep]:
    """Returns a run of only the first cell of a step."""
    return lambda ran: step([replace(ran.cells[0], alone=True)], {"flights": 6000})


def events(*timeline: dict[str, Any]) -> str:
    import json

    return "".join(json.dumps(event) + "\n" for event in timeline)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> MadeUpRuns:
    made_up = MadeUpRuns()
    monkeypatch.setattr(session, "run", made_up.run)
    monkeypatch.setattr(Command, "fetch", lambda *_args, **_settings: None)
    return made_up


@pytest.fixture
def work(runs: MadeUpRuns, tmp_path: Path) -> Callable[..., Any]:
    def go(
        *, budget_s: float = 600, tries: int = 1, directory_to_continue: Path | None = None
    ) -> session.Qualification:
        directory, progress = (
            begin(PATH, runs_dir=tmp_path, seed=None)
            if directory_to_continue is None
            else resume(directory_to_continue)
        )
        return Session(
            directory, progress, budget_s=budget_s, listener=Quiet(), clock=lambda: runs.now, tries=tries
        ).work()

    return go
