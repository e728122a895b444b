"""The pages about qualifications and comparisons, and the command `report`."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceproof.base.errors import UsageError
from onceproof.cli.app import app
from onceproof.cli.output import Output
from onceproof.cli.run import report_files
from onceproof.history.run_record import RunRecord
from onceproof.judge.findings import Outcome, StatedClaim
from onceproof.judge.verdict import write_verdict
from onceproof.qualify import page as qualification_page
from onceproof.qualify.cells import Cell, CellState, Shared
from onceproof.qualify.directory import Directory, QualificationProgress
from onceproof.qualify.strongest import Strongest
from onceproof.reports.brief import Brief
from onceproof.reports.comparison import Kind, compare_runs
from onceproof.reports.html import comparison_page
from onceproof.scenario.points import Point

from .conftest import DUPLICATE, HELD, INCONCLUSIVE, VIOLATED
from .test_html import Parsed

SCRIPT = "<script>alert(1)</script>"
CELLS = (
    Cell(
        "crash-driver-after-sink-commit",
        "crash",
        Point.AFTER_SINK_COMMIT,
        {"target": "driver"},
        words=f"COMMIT of {SCRIPT}",
        state=CellState.EXERCISED,
        verdict=Outcome.VIOLATED,
        anomalies={"duplicate": 1986},
        outputs=("rows",),
        witnesses={"duplicate": SCRIPT},
        evidence=(SCRIPT,),
        alone=True,
        shared=Shared("runs/a", "why", True, (SCRIPT,)),
        runs=("runs/a", "runs/b", "../../etc"),
    ),
    Cell("crash-driver-after-offset-log", "crash", Point.AFTER_OFFSET_LOG, {"target": "driver"}, "flights", verdict=Outcome.HELD, state=CellState.EXERCISED, runs=("runs/a",)),
    Cell("lost-ack", "lost-ack", Point.COMMIT_UNACKNOWLEDGED, state=CellState.NOT_REACHED, why="it never came"),
    Cell("reject", "reject", Point.COMMIT_LOST, state=CellState.N_A, why="no sink of that kind"),
)  # fmt: skip
PROGRESS = QualificationProgress(
    SCRIPT, "/jobs/job.yaml", "0" * 64, 7, cells=CELLS, steps=2, spent_s=61.0, ended="budget"
)


@pytest.fixture
def qualification(tmp_path: Path) -> Path:
    """The directory of a made-up qualification, with one run that has a report."""
    directory = Directory.create(tmp_path, "job")
    directory.save(PROGRESS)
    (directory.runs / "a").mkdir()
    (directory.runs / "a" / "report.html").write_text("")
    directory.write(directory.cells / "crash-driver-after-sink-commit.yaml", "name: job")
    return directory.path


def test_a_qualification_is_a_heat_map_with_evidence_and_commands(qualification: Path) -> None:
    text = qualification_page.write(qualification).read_text()
    plain = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))
    for part in (
        "3 reachable cells: 1 held, 1 undecided, 1 violated",
        "✕ violated*, driver (COMMIT of &lt;script&gt;alert(1)&lt;/script&gt;) · 3",
        "Query flights",
        "duplicate : 1,986 rows or records in rows",
        f"onceproof run {qualification}/cells/crash-driver-after-sink-commit.yaml",
        "It ended early (budget)",
        "it never came",
        "no sink of that kind",
        "Fix, one of",
    ):
        assert part in plain
    assert text.count("<script>") == 1
    assert 'href="runs/a/report.html"' in text and 'href="runs/b' not in text and "../../etc" not in text
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids)) and set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)


@pytest.mark.parametrize(
    ("content", "part"),
    [("{", "cannot be read"), ('{"version": 1, "cells": [3]}', "is damaged"), ("[]", "has version")],
)
def test_a_damaged_qualification_is_refused_with_its_file(qualification: Path, content: str, part: str) -> None:
    (qualification / "qualification.json").write_text(content)
    with pytest.raises(UsageError, match=f"qualification.json {part}"):
        qualification_page.write(qualification)


def test_values_of_other_types_in_a_qualification_are_refused(qualification: Path) -> None:
    file = qualification / "qualification.json"
    stored = json.loads(file.read_text())
    stored["cells"][0]["anomalies"] = {"duplicate": ["many"]}
    file.write_text(json.dumps(stored))
    with pytest.raises(UsageError, match="is damaged"):
        qualification_page.write(qualification)


def test_the_page_says_what_was_claimed_what_held_and_where_the_points_are(qualification: Path) -> None:
    run = qualification / "runs" / "first"
    run.mkdir(parents=True, exist_ok=True)
    write_verdict(run, replace(HELD, claim=StatedClaim({"delivery": "effectively-once"}, {"rows": {"order": SCRIPT}})))
    held = Strongest("at-least-once", {"liveness": "recovers"}, {"effectively-once": ["duplicate"]}, [])
    progress = replace(PROGRESS, first="runs/first", strongest=held)
    Directory(qualification).save(progress)
    assert Directory.open(qualification)[1].strongest == held
    text = Parsed(qualification_page.write(qualification).read_text()).text
    assert f"Claimed delivery effectively-once rows: order {SCRIPT} Held" in text
    assert "The strongest claim that held in all runs is at-least-once, liveness recovers" in text
    assert "after-sink-commit the sink has committed, commits/N is missing: N will be replayed" in text
    (run / "verdict.json").write_text("{")
    assert ">Claimed<" not in qualification_page.write(qualification).read_text(), (
        "of a damaged verdict nothing is shown"
    )
    Directory(qualification).save(replace(progress, ended=None))
    assert "The strongest claim" not in qualification_page.write(qualification).read_text(), "it still goes on"


@pytest.mark.parametrize(
    "strongest", [{"delivery": "exactly-once", "others": {}, "broken": {}, "doubts": []}, {"a": 1}, 3]
)
def test_a_damaged_claim_in_a_qualification_is_refused(qualification: Path, strongest: object) -> None:
    file = qualification / "qualification.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "strongest": strongest}))
    with pytest.raises(UsageError, match=r"qualification\.json is damaged"):
        Directory.open(qualification)


def test_a_qualification_that_is_a_link_is_refused(qualification: Path, tmp_path: Path) -> None:
    (qualification / "qualification.json").rename(tmp_path / "elsewhere.json")
    (qualification / "qualification.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(UsageError, match="cannot be read"):
        qualification_page.write(qualification)


@pytest.mark.parametrize("name", ["../../outside", "/tmp/../{tmp}/outside", "linked", "in-a-link/../../../outside"])
def test_a_cell_that_leads_out_of_the_qualification_has_no_command(
    qualification: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name.format(tmp=tmp_path)
    (tmp_path / "outside.yaml").write_text("name: theirs")
    (qualification / "cells" / "linked.yaml").symlink_to(tmp_path / "outside.yaml")
    stored = json.loads((qualification / "qualification.json").read_text())
    stored["cells"][0]["name"] = name
    (qualification / "qualification.json").write_text(json.dumps(stored))
    asked: list[Path] = []
    is_file = Path.is_file

    def listening(path: Path) -> bool:
        asked.append(path)
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", listening)
    text = qualification_page.page(*Directory.open(qualification))
    assert "onceproof run" not in text
    assert "duplicate" in text, "the rest of the cell is shown"
    assert not [path for path in asked if path.name in ("outside.yaml", "linked.yaml")]
    directory, progress = Directory.open(qualification)
    if name != "linked":
        with pytest.raises(UsageError, match="leads out of"):
            directory.write(directory.cells / f"{progress.cells[0].name}.yaml", "overwritten")
    assert (tmp_path / "outside.yaml").read_text() == "name: theirs"


@pytest.mark.parametrize("folder", ["cells", "runs"])
def test_a_linked_folder_of_a_qualification_is_not_followed(qualification: Path, tmp_path: Path, folder: str) -> None:
    (qualification / folder).rename(tmp_path / "elsewhere")
    (qualification / folder).symlink_to(tmp_path / "elsewhere")
    text = qualification_page.write(qualification).read_text()
    assert ("onceproof run" in text, 'href="runs/' in text) == (folder == "runs", folder == "cells")


def test_two_runs_are_compared_by_finding() -> None:
    record = RunRecord.model_validate({"scenario": {"name": "job"}, "seed": 7, "versions": {"kafka": "4.0"}})
    other = RunRecord.model_validate({"scenario": {"name": "job"}, "seed": 8, "versions": {"kafka": "4.1"}})
    more = replace(VIOLATED, findings=(replace(DUPLICATE, total=7000), replace(DUPLICATE, output="copies")))
    old, new = Brief(Path("/runs/1"), record, VIOLATED), Brief(Path("/runs/2"), other, more)
    done = compare_runs(old, new)
    assert done.statement == "violated as before; findings: 1 new, 1 changed (2 worse)"
    findings = {row.name: row for row in done.sections[0].rows}
    assert findings["duplicate in rows"].kind is Kind.CHANGED
    assert findings["duplicate in copies"].kind is Kind.NEW
    assert done.cautions == ("the seed differs: 7 and 8",)
    text = done.as_text()
    assert "changed  duplicate in rows: 6,000, breaks the claim -> 7,000, breaks the claim (worse)\n" in text
    assert "changed  kafka: 4.0 -> 4.1\n" in f"{text}\n", "a version is neither better nor worse"
    page = comparison_page.page(done)
    for part in ("</span> changed, worse<", "</span> new, worse<", "\u2260 changed", "2 worse.", "the seed differs"):
        assert part in page
    assert json.loads(json.dumps(done.to_json()))["sections"]["findings"][0]["kind"] == "changed"
    assert done.to_json()["sections"]["findings"][0]["trend"] == "worse"
    gone = compare_runs(old, Brief(Path("/runs/3"), record, HELD))
    assert gone.statement == "violated before, held now; findings: 1 gone (1 better)"
    assert compare_runs(old, old).statement == "violated as before; the findings are the same"
    nothing = Brief(Path("/runs/5"), record, HELD)
    assert compare_runs(nothing, nothing).statement == "held as before; no findings in either"
    unjudged = compare_runs(old, Brief(Path("/runs/6"), record, None)).sections[0].rows
    assert [(row.kind, row.trend) for row in unjudged] == [(Kind.GONE, "")], (
        "nothing is known of a run without a verdict"
    )
    allowed = replace(VIOLATED, findings=(replace(DUPLICATE, allowed="at-least-once allows it"),))
    (better,) = compare_runs(old, Brief(Path("/runs/7"), record, allowed)).sections[0].rows
    assert better.trend == "better", "the same rows, and the claim allows them"
    faults = compare_runs(old, Brief(Path("/runs/4"), record, INCONCLUSIVE)).sections[1]
    assert [(row.old, row.new, row.trend) for row in faults.rows] == [("hit", "not hit", "worse")]


def test_runs_on_an_external_stack_have_the_same_faults_whatever_their_names_begin_with() -> None:
    def run(prefix: str, topic: str) -> Brief:
        chaos = [{"fault": "partition", "topic": f"{prefix}{topic}"}]
        stack = {"provider": "external", "prefix": prefix}
        record = RunRecord.model_validate({"scenario": {"name": "job", "chaos": chaos, "stack": stack}})
        return Brief(Path("/runs/1"), record, HELD)

    assert compare_runs(run("onceproof-a-1.", "in"), run("onceproof-a-2.", "in")).cautions == ()
    other = compare_runs(run("onceproof-a-1.", "in"), run("onceproof-a-2.", "out"))
    assert other.cautions == ("the scenarios have different faults",)


def test_two_qualifications_are_compared_cell_by_cell(qualification: Path, tmp_path: Path) -> None:
    directory = Directory(shutil.copytree(qualification, tmp_path / "new"))
    directory.save(
        replace(PROGRESS, digest="1" * 64, cells=(replace(CELLS[0], verdict=Outcome.HELD, shared=None), *CELLS[1:3]))
    )
    done = CliRunner().invoke(app, ["report", "--compare", str(qualification), str(directory.path), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["statement"] == "violated before, inconclusive now; cells: 1 gone, 1 changed (1 better)"
    assert found["cautions"] == ["the scenario's file differs", "not every cell was tried in both"]
    assert "alert(1)" in Path(found["report"]).read_text()
    assert "<script>alert" not in Path(found["report"]).read_text()


def test_the_command_writes_pages_and_names_them(qualification: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    done = run(app, ["report", str(qualification)])
    assert done.exit_code == 0 and f"report     {qualification}/report.html" in done.stdout
    done = run(app, ["report", str(qualification), "--to", str(tmp_path / "other.html"), "--json"])
    assert json.loads(done.stdout) == {"report": str(tmp_path / "other.html")}
    assert (tmp_path / "other.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nowhere"], "'nowhere' does not exist"),
        (["--compare", "."], "report takes OLD and NEW, two directories, and 1 are named"),
        ([".", "."], "--compare takes two, and 2 are named"),
        (["."], "is not a run"),
    ],
)
def test_wrong_usage_is_refused(
    arguments: list[str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["report", *arguments])
    assert done.exit_code in (2, 4) and part in " ".join(done.output.split())


def test_a_run_and_a_qualification_are_not_compared(qualification: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", "--compare", str(qualification), str(tmp_path)])
    assert done.exit_code == 2 and "cannot be compared" in done.output


def test_each_registered_report_can_be_written_to_a_file() -> None:
    files = report_files(Path("a.xml"), ["html=b.html", "json=c=d.json"], Output(False))
    assert files == [("junit", Path("a.xml")), ("html", Path("b.html")), ("json", Path("c=d.json"))]


@pytest.mark.parametrize(
    "given, as_json, message",
    [
        (["html="], False, "names no file"),
        (["htm=a"], False, "there is no report 'htm'; did you mean 'html'"),
        (["htm"], False, "there is no report 'htm'; did you mean 'html'"),
        (["html", "junit"], False, "stdout cannot get two reports: html and junit"),
        (["html"], True, "stdout cannot get two reports: json and html"),
    ],
)
def test_a_report_that_cannot_be_written_is_refused(given: list[str], as_json: bool, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        report_files(None, given, Output(as_json, given))
