"""The commands of a report: the one that runs the scenario again leads to the same stack, and the stack's secrets are nowhere."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from onceproof.api.runs import Run
from onceproof.base.errors import UsageError
from onceproof.ci_output.github import annotation_lines
from onceproof.ci_output.result import of_run as ci_result
from onceproof.explore.replay import replayable
from onceproof.history.execution import Execution
from onceproof.history.run_record import RunRecord
from onceproof.judge.verdict import write_verdict
from onceproof.reports import commands
from onceproof.reports.html import files
from onceproof.reports.report import RunSet, ScenarioResult, reports
from onceproof.scenario.model import ExpectedVerdict
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find
from onceproof.stack.external.profile import KafkaProfile, PostgresProfile, StackProfile

from .conftest import VIOLATED

SECRET = "hunter2-of-the-cluster"
POSTGRES = PostgresProfile(uri=f"postgresql://tester:{SECRET}@127.0.0.1:1/shop")
PROFILE = StackProfile(
    name="staging", provider="external", chaos="allowed", kafka=KafkaProfile(bootstrap="127.0.0.1:1"), postgres=POSTGRES
)


@pytest.fixture
def execution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Execution:
    """An execution of a scenario, whose folder has a blank in its name, that has begun on a cluster and was judged."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = find("naive-append")
    made = Execution.create(load(path), tmp_path / "my jobs" / "orders.yaml", tmp_path / "runs").on(PROFILE)
    made.begins()
    made.directory.update(observed=True)
    write_verdict(made.directory.path, replace(VIOLATED, seed=made.scenario.seed))
    return made


def test_every_report_names_the_stack_of_the_run(execution: Execution, tmp_path: Path) -> None:
    run = execution.directory.path
    command = f"onceproof run '{tmp_path}/my jobs/orders.yaml' --seed {execution.scenario.seed} --stack staging"
    result = ScenarioResult("naive", ExpectedVerdict(), VIOLATED, run)
    texts = {name: reports.get(name)().render(RunSet((result,))) for name in ("terminal", "junit")}
    shown = ci_result(
        Run(execution.scenario, VIOLATED, run), None, passed=False, status="violated", why="", expected="held"
    )
    texts["page"] = files.write(run).read_text().replace("&#39;", "'")
    texts["annotation"] = annotation_lines([shown], tmp_path)[0]
    assert [name for name, text in texts.items() if command not in text] == []
    assert [name for name, text in texts.items() if "onceproof replay" in text or "onceproof shrink" in text] == []
    written = [path.read_text(errors="replace") for path in run.rglob("*") if path.is_file()]
    assert written and not any(SECRET in text or "127.0.0.1:1" in text for text in (*written, *texts.values()))


def test_replay_says_how_to_run_it_again(execution: Execution) -> None:
    with pytest.raises(UsageError, match="used the stack staging") as refused:
        replayable(execution.directory.path)
    assert refused.value.hint is not None and refused.value.hint.endswith(" --stack staging")


def test_a_run_on_its_own_services_needs_no_stack(tmp_path: Path) -> None:
    made = Execution.create(load(find("naive-append")), Path("orders.yaml"), tmp_path)
    made.begins()
    assert "stack_profile" not in json.loads((made.directory.path / "run.json").read_text())
    assert commands.run_again_of(made.directory.path) == f"onceproof run orders.yaml --seed {made.scenario.seed}"


def test_a_run_of_an_earlier_version_on_an_external_stack_leaves_the_name_open() -> None:
    stored = {"name": "orders", "stack": {"provider": "external"}}
    record = RunRecord.model_validate({"scenario": stored, "scenario_path": "o.yaml", "seed": 3})
    assert commands.run_again(record) == "onceproof run o.yaml --seed 3 --stack NAME"


@pytest.mark.parametrize("name", ["a; rm -rf ~", "$(id)", "--help x"])
def test_a_command_of_a_foreign_run_is_one_command(name: str) -> None:
    record = RunRecord.model_validate({"scenario": {}, "scenario_path": f"/{name}.yaml", "stack_profile": name})
    assert shlex.split(str(commands.run_again(record))) == ["onceproof", "run", f"/{name}.yaml", "--stack", name]


def test_there_is_no_command_for_an_import_or_without_a_record(tmp_path: Path) -> None:
    assert commands.run_again(RunRecord.model_validate({"scenario": {"name": "a"}, "imported": True})) is None
    assert commands.run_again_of(tmp_path) is None
