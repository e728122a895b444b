"""Foreign jobs can be tested with little work: `init` drafts the scenario, its owner edits at most ten lines, and the job is unchanged."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from onceproof.cli.app import app
from onceproof.run import Result
from onceproof.scenario_files.load import load

HERE = Path(__file__).parent
MOST_EDITED = 10
RunOnce = Callable[[str | Path], Result]


def neighbour(name: str) -> ModuleType:
    """Import a module of this folder, which is not on the path: tests are imported one by one."""
    spec = importlib.util.spec_from_file_location(f"adoption_{name}", HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


samples, shapes = neighbour("samples"), neighbour("shapes")


def draft(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The scenario that `init` writes, in a folder with the job, its samples and its schema."""
    shape = shapes.SHAPES[name]
    shutil.copy(HERE / "jobs" / shape.job, folder)
    samples.write(folder, *shape.samples)
    if shape.schema:
        (folder / "schema.sql").write_text(shape.schema)
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["init", *shape.init])
    assert done.exit_code == 0, done.output
    return (folder / shape.job).with_suffix(".yaml")


def adopted(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The scenario with its owner's edits."""
    file = draft(name, folder, monkeypatch)
    file.write_text(shapes.SHAPES[name].edited(file.read_text()))
    return file


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_a_draft_is_valid_after_few_edited_lines(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = draft(name, tmp_path, monkeypatch)
    drafted = file.read_text()
    edited = shapes.SHAPES[name].edited(drafted)
    file.write_text(edited)
    assert 0 < shapes.edited_lines(drafted, edited) <= MOST_EDITED
    load(file)
    done = CliRunner().invoke(app, ["validate", str(file), "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["warnings"] == [], done.output


def test_the_draft_contains_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "hunter2" not in draft("jdbc-append", tmp_path, monkeypatch).read_text()


@pytest.mark.real
@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", shapes.SHAPES)
def test_a_driver_crash_after_the_sink_commit_gets_the_expected_verdict(
    run_once: RunOnce, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, result = shapes.SHAPES[name], run_once(adopted(name, tmp_path, monkeypatch))
    verdict = result.verdict
    assert verdict.outcome.value == shape.verdict, verdict.reasons
    assert tuple(sorted(verdict.anomalies())) == shape.anomalies, verdict.reasons
    (fault,) = verdict.faults
    assert fault.hit, fault.evidence
    for finding in verdict.findings:
        if not finding.violates:
            continue
        assert finding.batches.keys() == {f"{fault.query}/{fault.batch}"} or finding.anomaly == "wrong-value", finding


@pytest.mark.real
@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_password_reaches_the_job_and_is_not_stored(
    run_once: RunOnce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job passes the password to JDBC in its properties; the stored scenario has only the template."""
    result = run_once(adopted("jdbc-append", tmp_path, monkeypatch))
    assert result.verdict.counts["effects.orders_raw_table"] > 0
    stored = json.loads((result.run_dir / "run.json").read_text())
    assert stored["scenario"]["pipeline"]["env"]["PGPASSWORD"] == "{postgres.password}"
