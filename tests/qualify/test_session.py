"""The session: its loop, its state, and how it is continued, with made-up runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onceproof.api.qualification import qualify
from onceproof.base.errors import EnvironmentProblem, HistoryError, Interrupted, ServiceFailed, UsageError
from onceproof.gate.baseline import HeldCells
from onceproof.gate.session import Status, judged_qualification
from onceproof.gate.settings import GateQualification
from onceproof.judge.findings import Outcome
from onceproof.qualify import matrix, session
from onceproof.qualify.cells import CellState
from onceproof.qualify.directory import FILE, Directory
from onceproof.qualify.matrix import statement
from onceproof.qualify.session import begin, resume
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find

from .made_up import PATH, MadeUpRuns, Quiet


def test_every_cell_is_decided_and_the_state_is_stored(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    result = work()
    assert result.outcome is Outcome.HELD
    names = [file.name for file in runs.files]
    assert names[0] == "01-without-faults.yaml" and all("-faults" in name for name in names[1:]), (
        "all cells shared a run"
    )
    assert len(names) == result.progress.steps
    assert {c.state for c in result.cells} == {CellState.EXERCISED, CellState.N_A}
    assert result.strongest.delivery == "effectively-once"
    assert not result.unfinished and result.progress.replaced == 1
    directory, stored = Directory.open(result.directory.path)
    assert stored == result.progress
    assert load(directory.steps / names[1]).chaos


def test_a_job_that_is_wrong_without_faults_is_given_none(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    runs.first = Outcome.VIOLATED
    result = work()
    assert (result.outcome, result.cells, len(runs.files)) == (Outcome.VIOLATED, (), 1)
    assert "No fault was tried" in matrix.statement(result)
    runs.first = Outcome.HELD  # a violation that shows only now and then is one
    again = work(directory_to_continue=result.directory.path)
    assert (again.outcome, again.cells, len(runs.files)) == (Outcome.VIOLATED, (), 1)


def test_a_run_without_faults_that_proved_nothing_is_tried_again(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    runs.first = Outcome.INCONCLUSIVE
    result = work()
    runs.first = Outcome.HELD
    again = work(directory_to_continue=result.directory.path)
    assert again.outcome is Outcome.HELD and result.progress.first not in again.progress.decided


def test_a_fault_that_misses_is_tried_alone_once(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    runs.missing = {"crash before-offset-log"}
    result = work()
    (alone,) = [file for file in runs.files if "-faults" not in file.name]
    assert alone.name.endswith("-crash-driver-before-offset-log.yaml")
    assert load(result.directory.cells / "crash-driver-before-offset-log.yaml").chaos == load(alone).chaos
    (missed,) = [c for c in result.cells if c.state is CellState.NOT_REACHED]
    assert (
        missed.name == "crash-driver-before-offset-log"
        and missed.why == "it was put in place, and is not proven to have hit"
    )
    assert result.outcome is Outcome.INCONCLUSIVE and not result.unfinished
    assert matrix.statement(result).endswith("Nothing is claimed of the other 1")


def test_a_qualification_that_its_budget_ended_can_be_continued(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    result = work(budget_s=80)
    exercised = [c for c in result.cells if c.exercised]
    left = [c for c in result.cells if c.state is CellState.NOT_REACHED]
    assert exercised and left and result.unfinished
    assert result.outcome is Outcome.INCONCLUSIVE
    assert left[0].why == "not tried: the budget of 1:20 was used up"
    assert "--continue" in matrix.as_text(result)
    again = work(directory_to_continue=result.directory.path)
    assert again.outcome is Outcome.HELD
    assert sum("without-faults" in file.name for file in runs.files) == 1
    assert again.progress.spent_s > result.progress.spent_s


def test_an_interruption_keeps_the_results(work: Callable[..., Any], runs: MadeUpRuns, tmp_path: Path) -> None:
    runs.raising = {2: Interrupted("interrupted by SIGINT")}
    with pytest.raises(Interrupted) as stopped:
        work()
    (path,) = tmp_path.glob("qualify-*")
    assert str(stopped.value.hint) == f"continue with: onceproof qualify --continue {path}"
    assert stopped.value.message == "interrupted: the results of 0 of 13 cells are kept"
    result = work(directory_to_continue=path)
    assert result.outcome is Outcome.HELD
    assert sum("without-faults" in file.name for file in runs.files) == 1


def test_a_violated_run_that_was_interrupted_after_its_verdict_stays_one(
    work: Callable[..., Any], runs: MadeUpRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.violated = {2}

    def interrupted_while_its_page_is_written(*given: Any, **settings: Any) -> Any:
        done = runs.run(*given, **settings)
        if len(runs.files) == 2:
            raise Interrupted("interrupted by SIGINT")
        return done

    monkeypatch.setattr(session, "run", interrupted_while_its_page_is_written)
    with pytest.raises(Interrupted):
        work()
    (path,) = tmp_path.glob("qualify-*")
    result = work(directory_to_continue=path)
    assert all(cell.verdict is Outcome.HELD for cell in result.cells if cell.reachable), "run again, each of them held"
    assert result.outcome is Outcome.VIOLATED and result.unclaimed == {"runs/02-8-faults-2": {"lost-write": 3}}
    assert "a run that was interrupted after its verdict; no cell is known" in matrix.as_text(result)


def test_cells_of_a_failed_run_are_tried_alone_and_a_second_failure_ends_the_qualification(
    work: Callable[..., Any], runs: MadeUpRuns, tmp_path: Path
) -> None:
    runs.raising = {2: ServiceFailed("kafka died", hint="see its log")}
    assert work().outcome is Outcome.HELD
    lost = {spec.fault for spec in load(runs.files[1]).chaos}
    alone = [load(file).chaos for file in runs.files if "-faults" not in file.name]
    assert all(len(chaos) == 1 for chaos in alone) and {chaos[0].fault for chaos in alone} == lost
    runs.files.clear()
    runs.raising = {2: ServiceFailed("kafka died"), 3: ServiceFailed("kafka died again", hint="see its log")}
    with pytest.raises(EnvironmentProblem, match="2 runs in a row failed, the last with: kafka died again") as failed:
        work()
    assert "--continue" in str(failed.value.hint)
    path = sorted(tmp_path.glob("qualify-*"), key=lambda found: found.stat().st_mtime)[-1]
    assert work(directory_to_continue=path).outcome is Outcome.HELD, "the cells of a machine in trouble are tried again"


def test_a_cell_whose_own_run_failed_names_the_failure_in_one_line(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    runs.missing = {"crash before-offset-log"}
    failure = ServiceFailed("kafka-2 ended with exit code -9", log_tail="many\nlines")
    failure.run_dir = Path("/runs/04")
    runs.raising = {4: failure}
    (cell,) = [c for c in work().cells if c.reachable and not c.exercised]
    message = "the harness could not finish its run: kafka-2 ended with exit code -9 (logs: /runs/04/logs)"
    assert (cell.name, cell.why) == ("crash-driver-before-offset-log", message)


def test_an_interruption_of_the_first_run_says_that_nothing_is_known(
    work: Callable[..., Any], runs: MadeUpRuns, tmp_path: Path
) -> None:
    runs.raising = {1: Interrupted("interrupted by SIGTERM")}
    with pytest.raises(Interrupted, match="interrupted: no run without faults was finished yet"):
        work()
    (path,) = tmp_path.glob("qualify-*")
    assert work(directory_to_continue=path).outcome is Outcome.HELD


def test_a_violation_that_no_cell_shows_alone_is_not_retried_away(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    runs.violated = {2}
    result = work()
    assert {c.verdict for c in result.cells if c.reachable} == {Outcome.HELD}
    (shared,) = [run for run in result.progress.decided if "2-" in run and "faults" in run]
    assert result.outcome is Outcome.VIOLATED and result.unclaimed == {shared: {"lost-write": 3}}
    assert result.strongest.delivery is None and result.strongest.broken["effectively-once"] == ["lost-write"]
    text = matrix.as_text(result)
    assert "lost-write: 3 rows" in text and f"seen in  {result.directory.path / shared}" in text
    assert "no cell is known to have caused it" in text and "held when run alone: " in text
    assert "1 run violated in a way that no single cell shows" in matrix.statement(result)
    (unclaimed,) = matrix.as_json(result)["unclaimed"]
    assert (unclaimed["run"], unclaimed["anomalies"]) == (str(result.directory.path / shared), {"lost-write": 3})
    assert set(unclaimed["cells"].values()) == {"held when run alone"}


def test_cells_that_hit_in_a_violated_run_are_violated_until_a_run_alone_decides(
    work: Callable[..., Any], runs: MadeUpRuns
) -> None:
    runs.violated, runs.slow = {2}, {2: 600.0}
    result = work(budget_s=600)
    struck = [c for c in result.cells if c.runs]
    assert len(struck) > 1 and len(runs.files) == 2
    assert {(c.state, c.verdict, c.together) for c in struck} == {(CellState.EXERCISED, Outcome.VIOLATED, True)}
    assert (result.outcome, result.unclaimed) == (Outcome.VIOLATED, {})
    message = matrix.statement(result)
    counts = (
        f"{len(struck)} of 13 reachable cells exercised: {len(struck)} violated together with others, not separated"
    )
    assert message.startswith(counts) and "no promise" not in message
    text = matrix.as_text(result)
    assert f"violated* {len(struck)} cells of a shared run, not separated from each other" in text
    assert text.count("lost-write: 3 rows") == 1, "the rows belong to the run, not to each cell"
    (row,) = [line for line in text.splitlines() if line.startswith("after-sink-commit ")]
    assert row.split()[1] == "violated*"
    first = matrix.as_json(result)["cells"][0]
    assert first["not_separated_from"] == [c.title() for c in struck[1:]] and first["repeat_was_run"] is False
    assert load(result.directory.cells / f"{struck[0].name}.yaml").chaos, "its command can be run"
    assert any(
        c.state is CellState.NOT_REACHED and c.why == "not tried: the budget of 10:00 was used up" for c in result.cells
    )
    _, stored = Directory.open(result.directory.path)
    assert stored == result.progress and stored.cells[0].shared is not None
    runs.slow = {}
    again = work(directory_to_continue=result.directory.path)
    assert {c.verdict for c in again.cells if c.reachable} == {Outcome.HELD} and again.unclaimed


def test_a_run_alone_that_misses_does_not_take_back_the_violation_of_a_shared_run(
    work: Callable[..., Any], runs: MadeUpRuns
) -> None:
    runs.violated = {2}
    runs.missing_alone = {"crash after-sink-commit"}
    result = work()
    (cell,) = [c for c in result.cells if c.name == "crash-driver-after-sink-commit"]
    assert (cell.state, cell.verdict, cell.together) == (CellState.EXERCISED, Outcome.VIOLATED, True)
    assert str(cell.why).endswith("alone, it was put in place, and is not proven to have hit")
    assert result.unclaimed == {}
    assert "violated together with others" in matrix.statement(result)


def test_a_cell_that_was_not_tried_names_the_time_needed_and_the_time_left(
    work: Callable[..., Any], runs: MadeUpRuns
) -> None:
    runs.seconds = 40.0
    result = work(budget_s=150)
    why = {c.why for c in result.cells if c.state is CellState.NOT_REACHED}
    assert why == {
        "not tried: the shortest run that remains needs about 0:58, more than the 0:40 left of the budget of 2:30"
    }


def test_the_time_of_a_run_alone_is_learned_for_its_kind_and_target(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    runs.missing, runs.slow = {"crash before-offset-log"}, {4: 70.0}
    result = work()
    assert result.progress.fault_s == {"crash driver": round((15 + 70) * 1.15, 1)}
    assert result.progress.cell_s == round(15 * 1.15, 1), "the others are not affected"


def test_a_run_directory_that_a_killed_harness_left_does_not_count(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    result = work(budget_s=80)
    before = json.loads((result.directory.path / FILE).read_text())
    half = result.directory.runs / "02-8-faults-20260101T000000-dead"
    half.mkdir()
    (half / "events.jsonl").write_text('{"at": 1.0, "kind": "pha')
    (half / "run.json").write_text('{"schema": 1}')
    (result.directory.path / f".{FILE}").write_text('{"version": 1, "scen')
    again = work(directory_to_continue=result.directory.path)
    assert again.outcome is Outcome.HELD
    assert [run for run in again.progress.decided if "dead" in run] == []
    assert [c for c in before["cells"] if c["runs"] and c["runs"] != again_runs(again, c["name"])] == []


def again_runs(result: Any, name: str) -> list[str]:
    return next(list(cell.runs) for cell in result.cells if cell.name == name)


def test_a_run_that_did_not_drain_leaves_every_promise_in_doubt(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    runs.stuck = {2}
    result = work()
    row = judged_qualification(GateQualification(path="job.yaml"), result, HeldCells.of(result))
    assert row.status is Status.INCONCLUSIVE and "did not drain" in row.why
    assert (result.outcome, result.strongest.delivery, result.strongest.others) == (Outcome.INCONCLUSIVE, None, {})
    assert "did not drain" in result.strongest.doubts[0] and result.unclear == tuple(result.strongest.doubts)
    assert matrix.statement(result).endswith("Whether a delivery promise held is in doubt")


def test_a_doubt_about_a_shared_run_counts_also_if_a_fault_missed_in_it(
    work: Callable[..., Any], runs: MadeUpRuns
) -> None:
    runs.missing_together, runs.doubts = {"crash after-sink-commit"}, {2: ("3 records sent to flights were lost",)}
    result = work()
    assert all(cell.verdict is Outcome.HELD for cell in result.cells if cell.reachable), (
        "also the one that missed, alone"
    )
    assert result.outcome is Outcome.INCONCLUSIVE and result.strongest.delivery is None
    assert result.unclear == ("runs/02-8-faults-2: 3 records sent to flights were lost",)


def test_the_deadline_of_a_run_alone_is_within_the_budget(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    runs.missing = {"crash before-offset-log"}
    work(budget_s=300)
    (alone,) = [file for file in runs.files if "-faults" not in file.name][:1]
    assert load(alone).limits.deadline_s < 300


def test_continuing_is_refused_if_the_scenario_has_changed(work: Callable[..., Any], tmp_path: Path) -> None:
    result = work(budget_s=80)
    stored = json.loads((result.directory.path / FILE).read_text())
    (result.directory.path / FILE).write_text(json.dumps({**stored, "digest": "another"}))
    with pytest.raises(UsageError, match="has changed since the qualification"):
        resume(result.directory.path)


def test_continuing_is_refused_for_another_version_or_if_the_copy_of_the_scenario_has_changed(
    work: Callable[..., Any], runs: MadeUpRuns
) -> None:
    directory = work(budget_s=80).directory
    started, stored = len(runs.files), Directory.open(directory.path)[1]
    for version in ("0.0.1", ""):
        directory.save(replace(stored, onceproof=version))
        with pytest.raises(UsageError, match="began the qualification"):
            work(directory_to_continue=directory.path)
    directory.save(stored)
    weaker = directory.scenario.read_text().replace("effectively-once", "at-least-once")
    directory.scenario.write_text(weaker)
    with pytest.raises(UsageError, match=r"scenario\.yaml has changed since"):
        work(directory_to_continue=directory.path)
    assert len(runs.files) == started


def test_continuing_is_refused_while_another_command_works_in_the_directory(runs: MadeUpRuns, tmp_path: Path) -> None:
    @contextmanager
    def meanwhile(_: object) -> Iterator[Quiet]:
        (path,) = tmp_path.glob("qualify-*")
        with pytest.raises(UsageError, match=f"another onceproof qualify works in {path}"):
            qualify(go_on=path, fresh_stack=True)
        yield Quiet()

    result = qualify(PATH, budget="2h", runs_dir=tmp_path, fresh_stack=True, listening=meanwhile)
    again = qualify(go_on=result.directory.path, fresh_stack=True)
    assert again.outcome is Outcome.HELD and again.progress.cells == result.progress.cells


def test_a_directory_may_be_named_by_a_path_with_dots(
    runs: MadeUpRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = qualify(PATH, budget="2h", runs_dir=tmp_path, fresh_stack=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = qualify(go_on=Path("..") / result.directory.path.name, fresh_stack=True)
    assert again.directory.path == result.directory.path and again.outcome is Outcome.HELD
    begun = qualify(PATH, budget="2h", runs_dir=Path("../runs"), fresh_stack=True)
    assert begun.directory.path.parent == tmp_path / "runs"


def test_the_kinds_of_a_qualification_are_stored_and_named_in_its_statement(runs: MadeUpRuns, tmp_path: Path) -> None:
    result = qualify(PATH, budget="2h", kinds=["stop"], runs_dir=tmp_path, fresh_stack=True)
    assert {cell.kind for cell in result.cells} == {"stop"} and result.outcome is Outcome.HELD
    assert "Other kinds of faults than stop were not tried" in statement(result)
    again = qualify(go_on=result.directory.path, kinds=["stop"], fresh_stack=True)
    assert again.progress.kinds == ("stop",)
    with pytest.raises(UsageError, match=r"--kinds cannot change the matrix .* it began with stop"):
        qualify(go_on=result.directory.path, kinds=["crash"], fresh_stack=True)


def test_an_unknown_kind_is_refused_before_anything_is_created(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="qualify tries no kind 'stopp'") as refused:
        qualify(PATH, kinds=["stopp"], runs_dir=tmp_path)
    assert "stop" in str(refused.value.hint) and not list(tmp_path.iterdir())


def test_continuing_is_refused_if_the_job_has_changed(runs: MadeUpRuns, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / PATH.name).write_text(PATH.read_text())
    for name in begin(PATH, runs_dir=tmp_path, seed=None)[1].files:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("print(1)")
    directory, progress = begin(home / PATH.name, runs_dir=tmp_path, seed=None)
    (job,) = progress.files
    assert resume(directory.path)[1] == progress
    (home / job).write_text("print(2)")
    with pytest.raises(UsageError, match=rf"{Path(job).name} has changed since the qualification"):
        resume(directory.path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "it has no qualification.json"),
        ("{", "cannot be read"),
        ('{"version": 99}', "has version 99, and this onceproof reads version 1"),
        ('{"version": 1}', "is damaged: ValidationError"),
        ('{"version": 1, "cells": [{}]}', "is damaged"),
        (
            '{"version": 1, "scenario": "", "scenario_path": "", "digest": "", "seed": 0, "cells": [], "decided": [], '
            '"outcome": "fine"}',
            "is damaged: ValueError: 'fine' is not a valid Outcome",
        ),
        ("[]", "has version None"),
    ],
)
def test_a_directory_without_a_readable_qualification_is_refused(
    tmp_path: Path, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / FILE).write_text(text)
    with pytest.raises(UsageError, match=message):
        Directory.open(tmp_path)


def test_the_result_is_what_the_command_reported_and_not_held_before_the_end(work: Callable[..., Any]) -> None:
    result = work()
    stored = Directory.open(result.directory.path)[1]
    assert stored.outcome == result.outcome.value and stored.result() is result.outcome
    assert replace(stored, outcome="violated").result() is Outcome.VIOLATED, "a run that no cell explains was violated"
    held = tuple(replace(cell, state=CellState.EXERCISED, verdict=Outcome.HELD, anomalies={}) for cell in stored.cells)
    assert replace(stored, cells=held, outcome=None, ended="done").result() is Outcome.HELD
    assert replace(stored, cells=held, outcome=None, ended=None).result() is Outcome.INCONCLUSIVE


def test_a_missing_run_directory_is_named(work: Callable[..., Any], runs: MadeUpRuns) -> None:
    result = work(budget_s=80)
    gone = result.directory.path / result.progress.decided[-1]
    started = len(runs.files)
    (gone / "verdict.json").unlink()
    with pytest.raises(HistoryError, match="cannot be read") as damaged:
        work(directory_to_continue=result.directory.path)
    assert str(damaged.value.hint) == f"judge the run again: onceproof check {gone}"
    shutil.rmtree(gone)
    with pytest.raises(HistoryError, match="cannot be read") as damaged:
        work(directory_to_continue=result.directory.path)
    assert "put its directory back, or begin a new qualification" in str(damaged.value.hint)
    assert len(runs.files) == started, "refused before anything is started"


@pytest.mark.parametrize("name", ["amqp-redelivery-reorders"])
def test_consumers_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="describes consumers, not a Spark job"):
        begin(find(name), runs_dir=tmp_path, seed=None)
    assert not list(tmp_path.iterdir())
