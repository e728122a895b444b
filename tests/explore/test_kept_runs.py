"""What `replay` and `shrink` leave: only whole runs, which can be replayed. Executions are made up; no process is started."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.base.errors import EnvironmentProblem, Interrupted, UsageError
from onceproof.consumers.schedule import ConsumerSchedule, WholeConsumers
from onceproof.explore import minimal, replay
from onceproof.explore.replay import SharedServices, stored_scenario
from onceproof.history.run_directory import RunDir, locked
from onceproof.history.run_record import RunRecord, StoredScenario
from onceproof.judge.findings import Outcome
from onceproof.scenario.model import Scenario
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find

SHIPPED = load(find("amqp-redelivery-reorders"))


def store(scenario: Scenario, directory: RunDir) -> None:
    directory.update(schema=1, scenario=StoredScenario.of(scenario))


@pytest.mark.parametrize("ending", [EnvironmentProblem("no member came"), Interrupted("stop"), OSError("disk full")])
@pytest.mark.parametrize("at", [1, 3])
def test_a_replay_that_fails_leaves_no_half_run_among_those_that_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: BaseException, at: int
) -> None:
    def once(scenario: Scenario, here: Path, start: object, directory: RunDir, number: int, *_: object) -> None:
        if number == at:
            raise ending

    results = iter(["as stored", "as stored", "another"])
    monkeypatch.setattr(replay, "replayable", lambda _: SHIPPED)
    monkeypatch.setattr(replay, "judge", lambda _: SimpleNamespace(outcome=Outcome.HELD))
    monkeypatch.setattr(replay, "write_verdict", lambda *_: None)
    monkeypatch.setattr(replay, "folder_of_scenario", lambda _: tmp_path)
    monkeypatch.setattr(replay, "_result", lambda *_: next(results))
    monkeypatch.setattr(replay, "shared_services", lambda *_, **__: nullcontext(SharedServices()))
    monkeypatch.setattr(replay, "execute_once", once)
    with pytest.raises(type(ending)):
        replay.replay(tmp_path, times=5, report=lambda _: None)
    # The second of them differs, and is kept.
    assert [path.name for path in (tmp_path / "replays").glob("*")] == ([] if at == 1 else ["0002"])


def test_the_best_run_of_a_shrink_that_ended_early_can_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def into(executions: Any, scenario: Scenario, directory: Path, here: Path) -> None:
        executions.number += 1
        store(scenario, RunDir.below(directory))

    verdict = SimpleNamespace(outcome=Outcome.VIOLATED, anomalies=lambda: {"reordered": 1}, reasons=())
    monkeypatch.setattr(minimal, "judge", lambda _: verdict)
    monkeypatch.setattr(minimal, "check", lambda _: verdict)
    monkeypatch.setattr(minimal.picture_files, "write", lambda _: None)
    monkeypatch.setattr(minimal._Executions, "_execute_into", into)
    spec = SHIPPED.input[0].model_copy(update={"dataset": "numbers", "options": {"rows": 9}, "rows": None})
    whole = WholeConsumers(SHIPPED.model_copy(update={"input": [spec]}))
    folder = tmp_path / "shrunk"
    executions = minimal._Executions(whole, tmp_path, SharedServices(), folder, 9, lambda _: None)
    best = ConsumerSchedule((3, 4), whole.schedule.names, whole.schedule.faults)
    for schedule in (best, whole.schedule):
        executions.execute(schedule)
    executions.keep(best)
    assert executions.best() == folder / "run"
    executions.clear()
    assert [path.name for path in folder.iterdir()] == ["run"]
    (options,) = [spec.options for spec in stored_scenario(folder / "run").input]
    records = [json.loads(line) for line in Path(options["file"]).read_text().splitlines()]
    assert len(records) == 2 and Path(options["file"]).is_relative_to(folder / "run")
    assert RunRecord.read(folder / "run").scenario.parsed(folder).chaos == list(whole.of(best, tmp_path / "x").chaos)


@pytest.mark.parametrize("command", ["replay", "shrink"])
def test_only_one_command_replays_or_shrinks_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Each would remove the executions of the other one."""
    for module in (replay, minimal):
        monkeypatch.setattr(module, "replayable", lambda _: SHIPPED)
    monkeypatch.setattr(replay, "_replay", lambda *_: "done")
    monkeypatch.setattr(minimal, "_shrink", lambda *_: "done")

    def work() -> object:
        if command == "replay":
            return replay.replay(tmp_path, times=1, report=print)
        return minimal.shrink_run(tmp_path, anomaly=None, most=1, report=print)

    with locked(tmp_path, "replay or shrink"), pytest.raises(UsageError, match="another onceproof replay or shrink"):
        work()
    assert work() == "done"
