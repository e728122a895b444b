"""A whole run with a registry that wants a password: the feed registers its schemas, and both topics are decoded by their ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.judge.verdict import check
from onceproof.run import Result, run
from onceproof.scenario_files.load import load_file

from .formats.apicurio import apicurio
from .formats.registry_server import registry_server
from .gate import summary

pytestmark = [pytest.mark.real, pytest.mark.full, pytest.mark.timeout(600)]

PASSWORD = "not-for-the-records"
SCENARIO = """\
base: avro-orders-to-topic
stack: {registry: {files: null, url_env: TEST_REGISTRY, user_env: TEST_REGISTRY_USER, password_env: TEST_REGISTRY_PASSWORD}}
expect: {verdict: violated, anomalies: [duplicate]}
"""


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEST_REGISTRY", "http://127.0.0.1:1")
    monkeypatch.setenv("TEST_REGISTRY_USER", "reader")
    monkeypatch.setenv("TEST_REGISTRY_PASSWORD", PASSWORD)
    path = tmp_path / "with-registry.yaml"
    path.write_text(SCENARIO)
    return path


def assert_decoded(result: Result, password: str) -> None:
    """Both topics were decoded, the judge needs no registry, and the password is in no file of the run."""
    assert result.verdict.anomalies() == {"duplicate": 1_000}, summary(result.verdict)
    decoded = json.loads((result.run_dir / "run.json").read_text())["decoded"]
    assert [decoded[kind][name]["undecodable"] for kind, name in (("inputs", "orders"), ("outputs", "orders"))] == [
        0,
        0,
    ]
    assert check(result.run_dir).anomalies() == {"duplicate": 1_000}  # without the server
    files = [path for path in result.run_dir.rglob("*") if path.is_file()]
    assert [path for path in files if password.encode() in path.read_bytes()] == []


def test_a_run_with_a_registry_server(scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with registry_server(("reader", PASSWORD)) as server:
        monkeypatch.setenv("TEST_REGISTRY", server.url)
        result = run(load_file(scenario), runs_dir=tmp_path / "runs")
    # The job takes the older schema for 1 and the newer one for 2, so the feed has registered them in this order.
    assert server.subjects == {"orders-value": [1, 2]}
    assert_decoded(result, PASSWORD)


def test_a_run_with_apicurio(scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real registry. Its ids begin at 1 as well."""
    with apicurio(tmp_path / "apicurio") as server:
        monkeypatch.setenv("TEST_REGISTRY", server.url)
        monkeypatch.setenv("TEST_REGISTRY_USER", server.user)
        monkeypatch.setenv("TEST_REGISTRY_PASSWORD", server.password)
        result = run(load_file(scenario), runs_dir=tmp_path / "runs")
    assert_decoded(result, server.password)


def test_a_registry_that_is_away_ends_the_run_before_a_service_starts(scenario: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"registry http://127\.0\.0\.1:1 cannot be reached") as found:
        run(load_file(scenario), runs_dir=tmp_path / "runs")
    assert found.value.exit_code == 4 and PASSWORD not in str(found.value)
    assert not [path for path in (tmp_path / "runs").rglob("*.log") if path.stat().st_size]
