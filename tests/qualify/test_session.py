"""The loop, its state and how it goes on: with runs that are told instead of run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.errors import EnvironmentProblem, Interrupted, ServiceFailed, UsageError
from onceproof.events import Event
from onceproof.judge.findings import FaultReport, Finding, Outcome, Verdict
from onceproof.judge.verdict import write_verdict
from onceproof.qualify import matrix, session
from onceproof.qualify.cells import State
from onceproof.qualify.directory import FILE, Directory
from onceproof.qualify.session import Session, begin, resume
from onceproof.qualify.strongest import DELIVERIES
from onceproof.scenario.load import find, load

PATH = find("foreign-psycopg-upsert")


class Quiet:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def starts(self) -> None: ...

    def begins(self, what: str) -> None:
        self.lines.append(what)

    def event(self, event: Event) -> None: ...

    def says(self, line: str) -> None:
        self.lines.append(line)


class Told:
    """Stands for `onceproof.run.run`: each fault hits, unless told otherwise, and takes 15 s; a run takes ``seconds`` besides."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seconds = 20.0
        self.files: list[Path] = []
        self.first = Outcome.HELD
        self.missing: set[str] = set()
        self.missing_alone: set[str] = set()
        self.violated: set[int] = set()
        """Numbers of the runs in which effects were lost, nobody knows in which batch."""
        self.stuck: set[int] = set()
        self.cut: set[int] = set()
        """Numbers of the runs that ended before they had drained, with nothing known of their batches."""
        self.slow: dict[int, float] = {}
        self.raising: dict[int, Exception] = {}

    def run(self, file: Path, *, runs_dir: Path, listeners: Any, survey: bool) -> Any:
        self.files.append(file)
        scenario = load(file)
        self.now += self.seconds + 15 * len(scenario.chaos) + self.slow.get(len(self.files), 0)
        if failure := self.raising.pop(len(self.files), None):
            raise failure
        run_dir = runs_dir / f"{scenario.name}-{len(self.files)}"
        run_dir.mkdir()
        told: list[dict[str, Any]] = []
        if survey:
            told = [
                {"at": 1.0, "kind": "batch.planned", "query": "last_seen", "batch": 1},
                {
                    "at": 1.5,
                    "kind": "frame.seen",
                    "service": "postgres",
                    "frame": "commit",
                    "writes": ["INSERT INTO last_seen"],
                },
                {"at": 2.0, "kind": "batch.committed", "query": "last_seen", "batch": 1, "records": 5},
            ]
        told += [{"at": 3.0, "kind": "fault.fired", "index": n, "instrument": "checkpoint"} for n in range(9)]
        (run_dir / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in told))
        verdict = self._verdict(scenario, survey)
        write_verdict(run_dir, verdict)
        drained = len(self.files) not in self.stuck | self.cut
        (run_dir / "run.json").write_text(json.dumps({"scenario": {}, "drained": drained}))
        return SimpleNamespace(verdict=verdict, run_dir=run_dir)

    def _verdict(self, scenario: Any, survey: bool) -> Verdict:
        from onceproof.judge.findings import BatchReport

        faults = tuple(
            FaultReport(
                f.fault,
                f.target,
                "last_seen",
                f.at.batch,
                f.at.point,
                True,
                True,
                (
                    f"{f.fault} {f.at.point}" not in self.missing
                    and (len(scenario.chaos) > 1 or f"{f.fault} {f.at.point}" not in self.missing_alone)
                )
                or len(self.files) in self.stuck,
            )
            for f in scenario.chaos
        )
        batches = tuple(BatchReport("last_seen", n, 0, 0, 9, (), Outcome.HELD) for n in range(30))
        outcome = self.first if survey else Outcome.HELD if all(f.hit for f in faults) else Outcome.INCONCLUSIVE
        findings: tuple[Finding, ...] = ()
        if len(self.files) in self.stuck and len(faults) == 1:
            outcome = Outcome.INCONCLUSIVE
        if len(self.files) in self.cut:
            batches = tuple(replace(batch, verdict=Outcome.INCONCLUSIVE) for batch in batches)
            outcome = Outcome.INCONCLUSIVE
        if len(self.files) in self.violated:
            findings = (Finding("lost-write", "last_seen", 3, "three", source="unknown"),)
            batches = tuple(replace(batch, verdict=Outcome.INCONCLUSIVE) for batch in batches)
            outcome = Outcome.VIOLATED
        counts = {f"expected.{output}": 9 for output in scenario.outputs}
        return Verdict(
            scenario.name, outcome, {}, ("a reason",), findings, faults=faults, counts=counts, batches=batches
        )


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    stand_in = Told()
    monkeypatch.setattr(session, "run", stand_in.run)
    monkeypatch.setattr(session.components, "ensure", lambda: None)
    return stand_in


@pytest.fixture
def work(told: Told, tmp_path: Path) -> Callable[..., Any]:
    def go(*, budget_s: float = 600, go_on: Path | None = None) -> session.Result:
        directory, progress = begin(PATH, runs_dir=tmp_path, seed=None) if go_on is None else resume(go_on)
        return Session(directory, progress, budget_s=budget_s, teller=Quiet(), clock=lambda: told.now).work()

    return go


def test_every_cell_is_settled_and_the_state_is_kept(work: Callable[..., Any], told: Told) -> None:
    result = work()
    assert result.outcome is Outcome.HELD
    names = [file.name for file in told.files]
    assert names[0] == "01-without-faults.yaml" and all("-faults" in name for name in names[1:]), "shared, all of them"
    assert len(names) == result.progress.steps
    assert {c.state for c in result.cells} == {State.EXERCISED, State.N_A}
    assert result.strongest.delivery == "effectively-once"
    assert not result.unfinished and result.progress.replaced == 1
    directory, stored = Directory.open(result.directory.path)
    assert stored == result.progress
    assert load(directory.steps / names[1]).chaos


def test_a_job_that_is_not_right_without_faults_gets_none(work: Callable[..., Any], told: Told) -> None:
    told.first = Outcome.VIOLATED
    result = work()
    assert (result.outcome, result.cells, len(told.files)) == (Outcome.VIOLATED, (), 1)
    assert "No fault was tried" in matrix.statement(result)
    told.first = Outcome.HELD  # mended meanwhile
    assert work(go_on=result.directory.path).outcome is Outcome.HELD


def test_a_fault_that_misses_is_tried_alone_once(work: Callable[..., Any], told: Told) -> None:
    told.missing = {"crash before-offset-log"}
    result = work()
    (alone,) = [file for file in told.files if "-faults" not in file.name]
    assert alone.name.endswith("-crash-driver-before-offset-log.yaml")
    assert load(result.directory.cells / "crash-driver-before-offset-log.yaml").chaos == load(alone).chaos
    (missed,) = [c for c in result.cells if c.state is State.NOT_REACHED]
    assert missed.name == "crash-driver-before-offset-log" and missed.why == "it fired, and is not proven to have hit"
    assert result.outcome is Outcome.INCONCLUSIVE and not result.unfinished
    assert matrix.statement(result).endswith("Nothing is claimed of the other 1")


def test_the_budget_ends_it_and_another_goes_on(work: Callable[..., Any], told: Told) -> None:
    result = work(budget_s=80)
    exercised = [c for c in result.cells if c.exercised]
    left = [c for c in result.cells if c.state is State.NOT_REACHED]
    assert exercised and left and result.unfinished
    assert result.outcome is Outcome.INCONCLUSIVE
    assert left[0].why == "not tried: the budget of 1:20 was used up"
    assert "--continue" in matrix.as_text(result)
    again = work(go_on=result.directory.path)
    assert again.outcome is Outcome.HELD
    assert sum("without-faults" in file.name for file in told.files) == 1
    assert again.progress.spent_s > result.progress.spent_s


def test_an_interruption_keeps_what_was_found(work: Callable[..., Any], told: Told, tmp_path: Path) -> None:
    told.raising = {2: Interrupted("interrupted by SIGINT")}
    with pytest.raises(Interrupted) as stopped:
        work()
    (path,) = tmp_path.glob("qualify-*")
    assert str(stopped.value.hint) == f"continue with: onceproof qualify --continue {path}"
    assert stopped.value.message == "interrupted: the results of 0 of 13 cells are kept"
    result = work(go_on=path)
    assert result.outcome is Outcome.HELD
    assert sum("without-faults" in file.name for file in told.files) == 1


def test_a_run_that_fails_is_tried_again_cell_by_cell_and_twice_is_the_machine(
    work: Callable[..., Any], told: Told, tmp_path: Path
) -> None:
    told.raising = {2: ServiceFailed("kafka died", hint="see its log")}
    assert work().outcome is Outcome.HELD
    lost = {spec.fault for spec in load(told.files[1]).chaos}
    alone = [load(file).chaos for file in told.files if "-faults" not in file.name]
    assert all(len(chaos) == 1 for chaos in alone) and {chaos[0].fault for chaos in alone} == lost
    told.files.clear()
    told.raising = {2: ServiceFailed("kafka died"), 3: ServiceFailed("kafka died again", hint="see its log")}
    with pytest.raises(EnvironmentProblem, match="2 runs in a row failed, the last with: kafka died again") as failed:
        work()
    assert "--continue" in str(failed.value.hint)
    path = sorted(tmp_path.glob("qualify-*"), key=lambda found: found.stat().st_mtime)[-1]
    assert work(go_on=path).outcome is Outcome.HELD, "the cells of a machine in trouble are tried again"


def test_an_interruption_before_the_first_run_ends_says_that_nothing_is_known(
    work: Callable[..., Any], told: Told, tmp_path: Path
) -> None:
    told.raising = {1: Interrupted("interrupted by SIGTERM")}
    with pytest.raises(Interrupted, match="interrupted: no run without faults was finished yet"):
        work()
    (path,) = tmp_path.glob("qualify-*")
    assert work(go_on=path).outcome is Outcome.HELD


def test_a_violation_that_no_cell_shows_alone_is_not_tried_away(work: Callable[..., Any], told: Told) -> None:
    told.violated = {2}
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


def test_cells_that_hit_in_a_wrong_run_are_violated_until_a_run_alone_decides(
    work: Callable[..., Any], told: Told
) -> None:
    told.violated, told.slow = {2}, {2: 600.0}
    result = work(budget_s=600)
    struck = [c for c in result.cells if c.runs]
    assert len(struck) > 1 and len(told.files) == 2
    assert {(c.state, c.verdict, c.together) for c in struck} == {(State.EXERCISED, Outcome.VIOLATED, True)}
    assert (result.outcome, result.unclaimed) == (Outcome.VIOLATED, {})
    said = matrix.statement(result)
    counts = (
        f"{len(struck)} of 13 reachable cells exercised: {len(struck)} violated together with others, not separated"
    )
    assert said.startswith(counts) and "no promise" not in said
    text = matrix.as_text(result)
    assert f"violated* {len(struck)} cells of a shared run, not separated from each other" in text
    assert text.count("lost-write: 3 rows") == 1, "they are the run's, not each cell's"
    (row,) = [line for line in text.splitlines() if line.startswith("after-sink-commit ")]
    assert row.split()[1] == "violated*"
    first = matrix.as_json(result)["cells"][0]
    assert first["not_separated_from"] == [c.title() for c in struck[1:]] and first["repeat_was_run"] is False
    assert load(result.directory.cells / f"{struck[0].name}.yaml").chaos, "its command can be run"
    assert any(
        c.state is State.NOT_REACHED and c.why == "not tried: the budget of 10:00 was used up" for c in result.cells
    )
    _, stored = Directory.open(result.directory.path)
    assert stored == result.progress and stored.cells[0].shared is not None
    told.slow = {}
    again = work(go_on=result.directory.path)
    assert {c.verdict for c in again.cells if c.reachable} == {Outcome.HELD} and again.unclaimed


def test_a_violation_in_a_shared_run_outlasts_a_run_alone_that_misses(work: Callable[..., Any], told: Told) -> None:
    told.violated = {2}
    told.missing_alone = {"crash after-sink-commit"}
    result = work()
    (cell,) = [c for c in result.cells if c.name == "crash-driver-after-sink-commit"]
    assert (cell.state, cell.verdict, cell.together) == (State.EXERCISED, Outcome.VIOLATED, True)
    assert str(cell.why).endswith("alone, it fired, and is not proven to have hit")
    assert result.unclaimed == {}
    assert "violated together with others" in matrix.statement(result)


def test_what_is_missing_and_what_is_left_of_the_budget_are_named(work: Callable[..., Any], told: Told) -> None:
    told.seconds = 40.0
    result = work(budget_s=150)
    why = {c.why for c in result.cells if c.state is State.NOT_REACHED}
    assert why == {"not tried: the shortest run that remains needs about 0:58, and 0:40 of the budget of 2:30 was left"}


def test_how_long_a_fault_takes_alone_is_learned_for_its_kind(work: Callable[..., Any], told: Told) -> None:
    told.missing, told.slow = {"crash before-offset-log"}, {4: 70.0}
    result = work()
    assert result.progress.fault_s == {"crash driver": round((15 + 70) * 1.15, 1)}
    assert result.progress.cell_s == round(15 * 1.15, 1), "of the others it says nothing"


def test_a_run_directory_that_a_killed_harness_left_does_not_count(work: Callable[..., Any], told: Told) -> None:
    result = work(budget_s=80)
    before = json.loads((result.directory.path / FILE).read_text())
    half = result.directory.runs / "02-8-faults-20260101T000000-dead"
    half.mkdir()
    (half / "events.jsonl").write_text('{"at": 1.0, "kind": "pha')
    (half / "run.json").write_text('{"schema": 1}')
    (result.directory.path / f".{FILE}").write_text('{"version": 1, "scen')
    again = work(go_on=result.directory.path)
    assert again.outcome is Outcome.HELD
    assert [run for run in again.progress.decided if "dead" in run] == []
    assert [c for c in before["cells"] if c["runs"] and c["runs"] != again_runs(again, c["name"])] == []


def again_runs(result: Any, name: str) -> list[str]:
    return next(list(cell.runs) for cell in result.cells if cell.name == name)


def test_a_run_that_did_not_drain_is_a_doubt(work: Callable[..., Any], told: Told) -> None:
    told.stuck = {2}
    result = work()
    assert (result.outcome, result.strongest.delivery, result.strongest.others) == (Outcome.INCONCLUSIVE, None, {})
    assert "did not drain" in result.strongest.doubts[0]
    assert matrix.statement(result).endswith("Whether a delivery promise held is in doubt")


def test_a_cell_alone_has_no_longer_than_the_budget(work: Callable[..., Any], told: Told) -> None:
    told.missing = {"crash before-offset-log"}
    work(budget_s=300)
    (alone,) = [file for file in told.files if "-faults" not in file.name][:1]
    assert load(alone).limits.deadline_s < 300


def test_a_cell_whose_run_the_budget_ended_is_tried_again(work: Callable[..., Any], told: Told) -> None:
    told.missing = {"crash before-offset-log"}
    work()
    number = next(n for n, file in enumerate(told.files, 1) if "before-offset-log" in file.name)
    told.files.clear()
    told.stuck, told.slow = {number}, {number: 600.0}
    result = work()
    (cut,) = [cell for cell in result.progress.cells if cell.name == "crash-driver-before-offset-log"]
    assert (cut.state, cut.verdict, cut.why) == (State.PENDING, None, "the budget ended its run before it had drained")
    assert result.unfinished
    told.missing = set()
    assert work(go_on=result.directory.path).outcome is Outcome.HELD


def test_cells_whose_shared_run_the_budget_ended_are_not_a_doubt(work: Callable[..., Any], told: Told) -> None:
    told.cut, told.slow = {2}, {2: 600.0}
    result = work()
    struck = [c for c in result.cells if c.runs]
    assert len(struck) > 1 and {c.state for c in struck} == {State.NOT_REACHED}
    (why,) = {c.why for c in struck}
    used_up = "no further run was made: the budget of 10:00 was used up"
    assert why == f"{used_up} (the budget ended its run before it had drained)"
    assert result.strongest is None and result.outcome is Outcome.INCONCLUSIVE
    told.slow, told.cut = {}, set()
    assert work(go_on=result.directory.path).outcome is Outcome.HELD


def test_a_scenario_that_changed_is_not_gone_on_with(work: Callable[..., Any], tmp_path: Path) -> None:
    result = work(budget_s=80)
    stored = json.loads((result.directory.path / FILE).read_text())
    (result.directory.path / FILE).write_text(json.dumps({**stored, "digest": "another"}))
    with pytest.raises(UsageError, match="has changed since the qualification"):
        resume(result.directory.path)


def test_a_job_that_was_mended_is_not_gone_on_with(told: Told, tmp_path: Path) -> None:
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
    ("text", "said"),
    [
        (None, "it has no qualification.json"),
        ("{", "cannot be read"),
        ('{"version": 99}', "has version 99, and this onceproof reads version 1"),
        ('{"version": 1}', "is damaged: KeyError"),
        ('{"version": 1, "cells": [{}]}', "is damaged"),
        ("[]", "has version None"),
    ],
)
def test_a_directory_that_holds_no_qualification_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / FILE).write_text(text)
    with pytest.raises(UsageError, match=said):
        Directory.open(tmp_path)


@pytest.mark.parametrize("name", ["amqp-redelivery-reorders"])
def test_consumers_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="describes consumers, not a Spark job"):
        begin(find(name), runs_dir=tmp_path, seed=None)
    assert not list(tmp_path.iterdir())


def test_the_report_is_text_of_100_columns_and_json(work: Callable[..., Any], told: Told) -> None:
    result = work(budget_s=80)
    broken = replace(
        next(c for c in result.cells if c.exercised),
        verdict=Outcome.VIOLATED,
        anomalies={"duplicate": 1234},
        outputs=("last_seen",),
        witnesses={"duplicate": "tailnum=N1 (batch 2; output last_seen xid 7, last_seen xid 8)"},
    )
    result = replace(result, cells=(broken, *result.cells[1:]), outcome=Outcome.VIOLATED)
    text = matrix.as_text(result)
    unbroken = ("directory", "next", "  repeat", "  alone", "  seen in", "  explain")
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith(unbroken))
    assert "duplicate: 1,234 rows in last_seen" in text
    assert "first    tailnum=N1 (batch 2; output last_seen xid 7, last_seen xid 8)" in text
    assert "fix      Progress in the transaction of the data" in text
    assert "explain  onceproof explain duplicate\n" in text
    assert f"  alone    onceproof run {result.directory.cells / broken.name}.yaml" in text
    for state in ("not reached", "n/a", "VIOLATED", "2 not reached"):
        assert state in text
    assert "…" not in text, "nothing of the table is cut off"
    document = json.loads(json.dumps(matrix.as_json(result)))
    assert document["verdict"] == "violated"
    assert document["matrix"]["after-sink-commit"]["crash"][0]["verdict"] == "violated"
    assert document["continue"].startswith("onceproof qualify --continue")
    assert {cell["state"] for cell in document["cells"]} == {"exercised", "not reached", "n/a"}
    first = document["cells"][0]
    assert first["witnesses"] == broken.witnesses and "onceproof.sinks.postgres" in first["fixes"]["duplicate"][0]


def test_what_onceproof_cannot_place_is_one_line(work: Callable[..., Any]) -> None:
    result = work()
    below = matrix.as_text(result).partition("\nn/a")[2].partition("directory")[0]
    assert len(below.splitlines()) <= 4
    assert "its batches write to a single sink; no query keeps state; no write to an output" in " ".join(below.split())
    absent = [c for c in result.cells if not c.reachable]
    of_tool = [c for c in absent if c.of_tool]
    said = f"{len(of_tool)} more: onceproof cannot place them (--json lists the reasons; docs/qualify.md)"
    assert said in " ".join(below.split())
    assert {str(c.why) for c in absent} > {str(c.why) for c in of_tool}
    assert {c["name"] for c in matrix.as_json(result)["cells"] if c["of_tool"]} == {c.name for c in of_tool}


def test_a_fix_is_given_once_and_a_checker_without_one_is_no_error(work: Callable[..., Any]) -> None:
    result = work()
    found = [replace(c, verdict=Outcome.VIOLATED, anomalies={"duplicate": 1, "theirs": 2}) for c in result.cells[:2]]
    text = matrix.as_text(replace(result, cells=(*found, *result.cells[2:])))
    assert text.count("Progress in the transaction of the data") == 1
    assert text.count("duplicate: 1 row") == 2 and "theirs: 2 rows" in text


def test_the_statement_claims_no_more_than_was_exercised(work: Callable[..., Any]) -> None:
    result = work()
    every = "13 of 13 reachable cells exercised: 13 held. "
    assert matrix.statement(result) == (
        f"{every}The strongest claim that held in all runs is effectively-once, liveness recovers"
    )
    doubt = replace(result, strongest=replace(result.strongest, delivery=None, others={}))
    assert matrix.statement(doubt) == f"{every}Whether a delivery promise held is in doubt"
    broken = {level: ["lost-write"] for level in DELIVERIES}
    none = replace(result, strongest=replace(result.strongest, delivery=None, broken=broken))
    assert matrix.statement(none) == f"{every}No delivery promise held in all runs; liveness recovers held"
    bare = replace(result, strongest=replace(none.strongest, others={}))
    assert matrix.statement(bare) == f"{every}No delivery promise held in all runs"
    nothing = replace(result, cells=tuple(c for c in result.cells if not c.reachable), strongest=None)
    assert matrix.statement(nothing) == (
        "no cell of the matrix applies to this job: no fault was tried, and nothing is claimed"
    )
    unproven = replace(result.cells[0], state=State.NOT_REACHED, verdict=Outcome.VIOLATED)
    some = replace(result, cells=(unproven,), strongest=None)
    assert matrix.statement(some) == (
        "none of 1 reachable cell was exercised, so nothing is claimed; "
        "1 reachable cell violated, but the fault is not proven to have hit"
    )
