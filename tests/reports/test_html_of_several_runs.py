"""The page about several runs, `onceproof report --merge`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceproof.cli.app import app
from onceproof.judge.findings import StatedClaim, Verdict
from onceproof.judge.verdict import write_verdict
from onceproof.reports.html import index_page
from onceproof.reports.report import RunSet, ScenarioResult
from onceproof.scenario.model import ExpectedVerdict

from .conftest import DUPLICATE, HELD, INCONCLUSIVE, RICH, VIOLATED

SCRIPT = "<script>alert(1)</script>"


def stored(folder: Path, verdict: Verdict | None, **more: object) -> Path:
    """A made-up run directory: only what it says of itself."""
    folder.mkdir(parents=True)
    name = folder.name if verdict is None else verdict.scenario
    record = {"scenario": {"name": name, "chaos": [{"fault": "crash"}]}, "observed": True, **more}
    (folder / "run.json").write_text(json.dumps(record))
    if verdict is not None:
        write_verdict(folder, verdict)
    return folder


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def merged(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["report", *arguments])
    return done.exit_code, " ".join(done.output.split())


def test_several_runs_have_one_page_with_a_row_and_a_section_each(tmp_path: Path) -> None:
    runs = [stored(tmp_path / one.scenario, one) for one in (HELD, RICH, INCONCLUSIVE)]
    done = CliRunner().invoke(app, ["report", str(runs[0]), "--merge", *map(str, runs[1:]), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found == {"report": f"{runs[0]}/merged.html", "verdict": "violated", "runs": [str(run) for run in runs]}
    text = Path(found["report"]).read_text()
    for part in (
        "3 runs ✕ violated",
        "1 of 3 held",
        "good ✓ held ✓ yes every claim held and every fault hit none 1 of 1",
        "rich ✕ violated ✕ no 6000 duplicates duplicate 6,000, torn-batch 1 1 of 1",
        "vague ? inconclusive ✕ no a fault did not hit none 0 of 1",
        "duplicate in copies ✓ allowed",
        "6,000 extra rows",
        "batch 2 wrote it in start 0",
        f"onceproof report {runs[1]} --open",
        "copies: delivery at-least-once, order none",
    ):
        assert part in plain(text), part
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids)) and {"run-1", "run-2", "run-3"} <= set(ids)
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)
    assert not re.findall(r'(?:src|href)="(?!#)', text), "it leads to no other file"
    assert not {path.name for path in runs[1].iterdir()} - {"run.json", "verdict.json"}


def test_hostile_text_of_a_run_does_nothing(tmp_path: Path) -> None:
    finding = replace(DUPLICATE, anomaly=SCRIPT, output=SCRIPT, summary=SCRIPT, attribution={SCRIPT: 1})
    bad = replace(
        VIOLATED, scenario=SCRIPT, reasons=(SCRIPT,) * 3, claim=StatedClaim({SCRIPT: SCRIPT}), findings=(finding,)
    )
    bad = replace(bad, faults=tuple(replace(fault, fault=SCRIPT, target=SCRIPT) for fault in bad.faults))
    runs = [stored(tmp_path / 'a"><b>', bad), stored(tmp_path / "b", None, error=SCRIPT)]
    assert merged(*map(str, runs), "--merge", "--to", str(tmp_path / "all.html"))[0] == 0
    text = (tmp_path / "all.html").read_text()
    assert text.count("<script>") == 1 and "<b>" not in text and "&lt;script&gt;alert(1)" in text
    assert "default-src &#39;none&#39;" in text


def test_a_damaged_or_unjudged_run_has_a_row_with_what_is_known(tmp_path: Path) -> None:
    runs = [stored(tmp_path / name, HELD if name == "cut" else None) for name in ("cut", "never", "elsewhere")]
    (runs[0] / "run.json").write_text("{")
    (tmp_path / "secret.json").write_text(json.dumps({**HELD.to_json(), "scenario": "SECRET"}))
    (runs[2] / "verdict.json").symlink_to(tmp_path / "secret.json")
    code, said = merged(*map(str, runs), "--merge")
    assert code == 0 and "result error, the worst of 3 runs" in said
    text = plain((runs[0] / "merged.html").read_text())
    assert "good ✓ held" in text and "run.json cannot be read" in text
    assert "never ! no verdict ✕ no it was never judged" in text
    assert "elsewhere ! no verdict ✕ no verdict.json cannot be read" in text and "SECRET" not in text


@pytest.mark.parametrize("text", ["x", '"', "\u202e", "\U0001f600"])
def test_the_page_stays_small_whatever_the_runs_are(tmp_path: Path, text: str) -> None:
    witness = replace(DUPLICATE.witnesses[0], identity={text * 900: text * 900}, argument=f"{text * 5000}\n" * 20)
    finding = replace(DUPLICATE, anomaly=text * 900, output=text * 900, summary=text * 9000, witnesses=(witness,) * 32)
    many = replace(VIOLATED, scenario=text * 900, findings=(finding,) * 40, reasons=(text * 9000,) * 40)
    many = replace(many, claim=StatedClaim({text * 900: text * 900}), faults=many.faults * 900)
    results = tuple(ScenarioResult(text * 900, ExpectedVerdict(), many, tmp_path / (text * 60)) for _ in range(700))
    page = index_page.page(RunSet(results))
    assert len(page.encode()) <= 1_000_000
    assert " of 700 are shown." in plain(page) and "this page has no room for their findings" in plain(page)
    assert page.startswith("<!DOCTYPE html>") and "script-src &#39;sha256-" in page, "the policy is not cut off"


def test_what_a_section_leaves_out_is_counted(tmp_path: Path) -> None:
    many = replace(VIOLATED, findings=(DUPLICATE,) * 40, reasons=("because",) * 7, faults=VIOLATED.faults * 21)
    page = plain(index_page.page(RunSet((ScenarioResult("many", ExpectedVerdict(), many, tmp_path),) * 2)))
    for number, noun in ((30, "findings are"), (2, "reasons are"), (1, "fault is")):
        assert page.count(f"{number} more {noun} not shown here. The page of the run has all.") == 2


def test_wrong_usage_is_refused(tmp_path: Path) -> None:
    run = str(stored(tmp_path / "run", HELD))
    (tmp_path / "empty").mkdir()
    (tmp_path / "qualification").mkdir()
    (tmp_path / "qualification" / "qualification.json").write_text("{}")
    for arguments, part in (
        ((run, "--merge"), "report takes two runs or more, and 1 are named"),
        ((run, run), "--merge takes several"),
        ((run, run, "--merge", "--compare"), "two different pages"),
        ((run, str(tmp_path / "empty"), "--merge"), "is not a run: it is an empty folder"),
        ((run, str(tmp_path / "qualification"), "--merge"), "is a qualification, and --merge takes runs"),
        ((run, str(tmp_path / "nowhere"), "--merge"), "does not exist"),
    ):
        code, said = merged(*arguments)
        assert code == 2 and part in said, said


def test_a_run_that_is_named_twice_is_shown_once(tmp_path: Path) -> None:
    runs = [str(stored(tmp_path / name, HELD)) for name in ("a", "b")]
    assert "the worst of 2 runs" in merged(*runs, runs[0], "--merge")[1]


@pytest.mark.parametrize("planted", ["merged.html", "verdict.json"])
def test_a_link_in_a_run_is_not_followed(tmp_path: Path, planted: str) -> None:
    runs = [stored(tmp_path / name, HELD) for name in ("a", "b")]
    (tmp_path / "mine").write_text("mine")
    (runs[0] / planted).unlink(missing_ok=True)
    (runs[0] / planted).symlink_to(tmp_path / "mine")
    assert merged(*map(str, runs), "--merge")[0] == 0
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (runs[0] / "merged.html").is_symlink()
