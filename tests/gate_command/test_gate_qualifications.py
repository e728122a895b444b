"""Qualifications in the gate: their order, what is left of the budget for them, and what fails them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onceproof.api import qualification, runs
from onceproof.base.errors import EnvironmentProblem
from onceproof.cli.app import app
from onceproof.gate import session
from onceproof.gate.baseline import Baseline, HeldCells
from onceproof.gate.session import Status
from onceproof.gate.settings import GateQualification, GateScenario
from onceproof.judge.findings import Outcome, StatedClaim, Verdict
from onceproof.qualify.cells import Cell, CellState
from onceproof.qualify.directory import Directory, QualificationProgress
from onceproof.qualify.session import Qualification
from onceproof.scenario.points import Point
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find

POINTS = (Point.AFTER_OFFSET_LOG, Point.AFTER_SINK_COMMIT, Point.AFTER_COMMIT_LOG)
#: held, violated, not tried
H, V, N = Outcome.HELD, Outcome.VIOLATED, None


def qualified(
    folder: Path,
    *verdicts: Outcome | None,
    ended: str = "done",
    first: Outcome | None = None,
    unclear: tuple[str, ...] = (),
) -> Qualification:
    cells = tuple(
        Cell(
            f"crash-{point}",
            "crash",
            point,
            {"target": "driver"},
            state=CellState.NOT_REACHED if verdict is None else CellState.EXERCISED,
            verdict=verdict,
            anomalies={"duplicate": 3} if verdict is V else {},
        )
        for point, verdict in zip(POINTS, verdicts, strict=False)
    )
    folder.mkdir(parents=True, exist_ok=True)
    directory = Directory.create(folder, "job")
    progress = QualificationProgress("job", "job.yaml", "0" * 64, 7, cells=cells, steps=2, spent_s=61.0, ended=ended)
    directory.save(progress)
    without_faults = Verdict("job", first or (H if cells else V), StatedClaim(), ("why",))
    outcome = V if V in verdicts else H
    scenario = load(find("naive-append"))
    return Qualification(scenario, directory, progress, cells, without_faults, None, outcome, 60.0, unclear=unclear)


def judged(
    tmp_path: Path, *verdicts: Outcome | None, before: list[str] | None = None, expect: Any = "held", **how: Any
) -> Any:
    item = GateQualification(path="job.yaml", expect=expect)
    result = qualified(tmp_path, *verdicts, **how)
    cells = [f"crash-{point}" for point in before or ()]
    known = None if before is None else HeldCells.of(result).model_copy(update={"cells": cells})
    row = session.judged_qualification(item, result, known)
    return row.status, row.why


def test_a_violated_cell_is_a_regression(tmp_path: Path) -> None:
    assert judged(tmp_path, H, V) == (Status.REGRESSION, "violated: crash driver at after-sink-commit")


def test_what_the_budget_left_out_is_named_and_does_not_fail_the_gate(tmp_path: Path) -> None:
    status, why = judged(tmp_path, H, H, N, before=["after-offset-log"])
    assert (status, why) == (
        Status.PASSED,
        "2 of 3 reachable cells held; left out: crash driver at after-commit-log",
    )


def test_a_cell_that_is_no_longer_shown_to_hold_is_less_coverage(tmp_path: Path) -> None:
    status, why = judged(tmp_path, H, N, before=["after-offset-log", "after-sink-commit"])
    assert (status, why) == (Status.LESS_COVERAGE, "no longer shown to hold: crash driver at after-sink-commit")


def test_cells_that_hold_for_a_weaker_claim_are_less_coverage(tmp_path: Path) -> None:
    before = qualified(tmp_path, H)
    weaker = before.scenario.claim.model_copy(update={"delivery": "at-least-once"})
    scenario = before.scenario.model_copy(update={"claim": weaker})
    after = replace(before, scenario=scenario, first=replace(before.first, claim=StatedClaim.of(scenario)))
    item = GateQualification(path="job.yaml")
    row = session.judged_qualification(
        item, after, HeldCells.of(replace(before, first=replace(before.first, claim=StatedClaim.of(before.scenario))))
    )
    assert row.status is Status.LESS_COVERAGE
    assert row.why == "another claim: delivery at-least-once instead of effectively-once"


def test_a_baseline_that_does_not_say_what_a_qualification_examined_is_named(tmp_path: Path) -> None:
    known = HeldCells(cells=["crash-after-offset-log"], seconds=60)
    row = session.judged_qualification(GateQualification(path="job.yaml"), qualified(tmp_path, H), known)
    lacks = "the baseline lacks what its run without faults examined: onceproof gate --update adds it"
    assert (row.status, row.why) == (Status.PASSED, f"1 of 1 reachable cell held; {lacks}")


def test_nothing_exercised_is_inconclusive(tmp_path: Path) -> None:
    status, why = judged(tmp_path, N, N)
    assert status is Status.INCONCLUSIVE and why.startswith("0 of 2 reachable cells held; left out: crash driver at")


def test_a_job_that_is_violated_without_any_fault_is_a_regression_unless_it_is_known_to_be_bad(tmp_path: Path) -> None:
    why = "without any fault it is violated, so no fault was tried"
    assert judged(tmp_path) == (Status.REGRESSION, why)
    assert judged(tmp_path, expect="violated") == (Status.PASSED, why)
    inconclusive = judged(tmp_path, first=Outcome.INCONCLUSIVE)
    assert inconclusive == (Status.INCONCLUSIVE, why.replace("violated", "inconclusive"))


def test_cells_that_the_budget_left_out_are_no_loss_of_coverage(tmp_path: Path) -> None:
    status, why = judged(tmp_path, H, N, before=["after-offset-log", "after-sink-commit"], ended="budget")
    assert status is Status.INCONCLUSIVE
    assert why == "held before, and the budget ended first: crash driver at after-sink-commit"


def test_cells_without_a_decision_are_named_and_do_not_begin_a_baseline(tmp_path: Path) -> None:
    undecided = "1 of 2 reachable cells held; not decided: crash driver at after-sink-commit"
    assert judged(tmp_path, H, Outcome.INCONCLUSIVE) == (Status.INCONCLUSIVE, undecided)
    assert judged(tmp_path, H, Outcome.INCONCLUSIVE, before=["after-offset-log"]) == (Status.PASSED, undecided)


def test_a_run_in_doubt_is_not_passed(tmp_path: Path) -> None:
    doubts = ("runs/02: the run did not drain, so more may still have come", "runs/03: another")
    before = ["after-offset-log", "after-sink-commit"]
    why = f"2 of 2 reachable cells held; in doubt: {doubts[0]}"
    assert judged(tmp_path, H, H, unclear=doubts) == (Status.INCONCLUSIVE, why)
    assert judged(tmp_path, H, H, unclear=doubts, before=before) == (Status.INCONCLUSIVE, why)
    assert judged(tmp_path, H, V, unclear=doubts)[0] is Status.REGRESSION
    assert judged(tmp_path, H, H, unclear=doubts, expect="violated")[0] is Status.INCONCLUSIVE, (
        "that run may show what is wrong"
    )


def test_a_known_bad_job_must_be_caught(tmp_path: Path) -> None:
    assert judged(tmp_path, H, V, expect="violated")[0] is Status.PASSED
    assert judged(tmp_path, H, H, expect="violated")[0] is Status.NOT_CAUGHT
    assert judged(tmp_path, H, N, expect="violated")[0] is Status.INCONCLUSIVE, "the one left out may be it"
    assert judged(tmp_path, H, Outcome.INCONCLUSIVE, expect="violated")[0] is Status.INCONCLUSIVE


def test_new_coverage_says_that_it_is_not_in_the_baseline(tmp_path: Path) -> None:
    assert judged(tmp_path, H, H) == (Status.PASSED, "2 of 2 reachable cells held; not in the baseline yet")


def test_scenarios_come_before_qualifications_and_of_each_what_failed_or_is_known_to_be_bad() -> None:
    known = Baseline(scenarios={}, qualifications={"qualify short": HeldCells(cells=[], seconds=1)})
    items = [
        GateQualification(path="long"),
        GateQualification(path="short"),
        GateQualification(path="failed"),
        GateQualification(path="bad", expect="violated"),
        GateScenario(path="scenario"),
        GateScenario(path="bad", expect="violated"),
    ]
    names = [item.name for item in session.ordered(items, ["qualify failed"], known)]
    assert names == ["bad", "scenario", "qualify failed", "qualify bad", "qualify short", "qualify long"]


def test_a_qualification_gets_what_is_left_and_no_more_than_its_own_budget(tmp_path: Path) -> None:
    given: dict[str, float] = {}
    now = [0.0]

    def qualify(item: GateQualification, most_s: float) -> Qualification:
        given[item.path] = most_s
        now[0] += min(most_s, 100)
        if item.path == "fails":
            raise EnvironmentProblem("no Java")
        return qualified(tmp_path, H)

    items = [
        GateQualification(path="small", budget="1m"),
        GateQualification(path="fails", budget="1m"),
        GateQualification(path="large"),
        GateQualification(path="late"),
    ]

    def none(_: GateScenario) -> Any:
        raise AssertionError("there is no scenario")

    result = session.work(items, Baseline(scenarios={}), none, qualify, budget_s=230, clock=lambda: now[0])
    assert given == {"small": 60, "fails": 60, "large": 110}
    assert [(row.path, row.status) for row in result.rows] == [
        ("qualify small", Status.PASSED),
        ("qualify fails", Status.ERROR),
        ("qualify large", Status.PASSED),
        ("qualify late", Status.NOT_RUN),
    ]
    assert result.rows[-1].why == "10 s of the budget of 230 s were left"
    assert set(result.baseline().qualifications) == {"qualify small", "qualify large"}


def test_a_qualification_that_is_no_longer_listed_is_less_coverage() -> None:
    known = Baseline(scenarios={}, qualifications={"qualify gone": HeldCells(cells=["a"], seconds=1)})
    result = session.work([], known, lambda _: None, lambda *_: None, budget_s=60)  # type: ignore[arg-type,return-value]
    assert [(row.path, row.status) for row in result.rows] == [("qualify gone", Status.LESS_COVERAGE)]


def test_a_baseline_without_qualifications_has_no_word_of_them(tmp_path: Path) -> None:
    Baseline(scenarios={}).write(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == {"scenarios": {}, "version": 3}
    both = Baseline(scenarios={}, qualifications={"qualify a": HeldCells(cells=["c"], seconds=2)})
    both.write(tmp_path / "b.json")
    assert Baseline.read(tmp_path / "b.json") == both


def test_the_command_runs_them_writes_the_baseline_and_then_holds_them_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onceproof.toml").write_text('[gate]\nqualifications = [{path = "job.yaml", tries = 2}]\n')
    (tmp_path / "job.yaml").write_text("base: ack-lost-transactional\n")
    monkeypatch.chdir(tmp_path)
    verdicts: list[Outcome | None] = [H, H]
    budgets = []

    def qualify(
        _scenario: Path, *, budget: str, tries: int, runs_dir: Path, listening: Any, **_options: Any
    ) -> Qualification:
        assert tries == 2
        done = qualified(tmp_path / runs_dir, *verdicts)
        with listening(done.progress) as listener:
            listener.starts()
            listener.begins("run 1: without faults")
        budgets.append(budget)
        return done

    monkeypatch.setattr(qualification, "qualify", qualify)
    monkeypatch.setattr(runs, "run", None)
    done = CliRunner().invoke(app, ["gate", "--update", "--budget", "5m"])
    assert done.exit_code == 0 and "wrote the baseline" in done.output and budgets[0] in ("300s", "299s")
    verdicts[1] = N
    done = CliRunner().invoke(app, ["gate", "--json", "--junit", "gate.xml"])
    assert done.exit_code == 1
    (row,) = json.loads(done.stdout)["scenarios"]
    assert (row["path"], row["result"]) == ("qualify job.yaml", "less coverage")
    assert Path(row["qualification"], "report.html").is_file()
    text = " ".join(done.stderr.split())
    assert f"next onceproof qualify --continue {row['qualification']}" in text
    assert "no longer shown to hold" in Path("gate.xml").read_text()


def test_a_file_that_does_not_exist_is_named_with_its_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onceproof.toml").write_text('[gate]\nqualifications = [{path = "jbo.yaml"}]\n')
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["gate", "--update"])
    assert done.exit_code == 2 and "gate.qualifications: " in done.output and "jbo.yaml" in done.output
