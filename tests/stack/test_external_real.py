"""Whole runs on an external stack without logins and TLS: the verdicts of the embedded stack, and nothing remains there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceproof.judge.findings import Outcome
from onceproof.run import run
from onceproof.scenario_files.load import load_all
from onceproof.stack.external import journal
from onceproof.stack.processes.owner import Owner

from .external_services import Foreign, started

pytestmark = [pytest.mark.real, pytest.mark.full]  # the gate runs a cluster with logins: `test_external_conformance.py`


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    with Owner() as owner:
        yield started(owner, tmp_path_factory.mktemp("foreign"))


@pytest.mark.parametrize(
    ("name", "outcome", "anomalies"),
    [
        ("naive-append", Outcome.VIOLATED, ["duplicate"]),
        ("effectively-once", Outcome.HELD, []),
    ],
)
def test_a_scenario_has_the_same_verdict_as_on_the_embedded_stack(
    foreign: Foreign, name: str, outcome: Outcome, anomalies: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEPROOF_STATE_DIR", str(tmp_path / "state"))
    topics = foreign.topics()
    (loaded,) = load_all([name], foreign.profile)
    done = run(loaded, runs_dir=tmp_path / "runs")
    assert done.verdict.outcome is outcome, done.verdict.reasons
    assert [finding.anomaly for finding in done.verdict.findings] == anomalies
    assert (foreign.topics(), foreign.objects(), [*journal.folder().iterdir()]) == (topics, [], [])
    secret = foreign.profile.postgres.secret  # type: ignore[union-attr]
    holding = [path for path in done.run_dir.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert holding == []
