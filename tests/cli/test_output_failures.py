"""A result that cannot be written never ends with a verdict's exit code; text from a job cannot control the terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from onceproof.base.visible import visible
from onceproof.judge.findings import Outcome, StatedClaim, Verdict
from onceproof.judge.verdict import write_verdict
from onceproof.reports.report import RunSet, ScenarioResult, reports
from onceproof.scenario.model import ExpectedVerdict
from onceproof.scenario_files.load import load_file
from onceproof.scenario_files.shipped import find

#: The program with a faked run. Its first word is the verdict, whose reason has characters that a job may print.
PROGRAM = """
import sys, types
from pathlib import Path
from onceproof.cli import run as cli_run
from onceproof.judge.findings import Outcome, StatedClaim, Verdict
from onceproof.judge import verdict as judged
from onceproof.scenario.model import ExpectedVerdict

outcome = Outcome(sys.argv.pop(1))
judged.check = lambda run: Verdict("mine", outcome, StatedClaim({"delivery": "effectively-once"}), ("ümläut \\u2500 \\x1b[2J \\ud800 end",))
cli_run._stored_expectation = lambda run: ExpectedVerdict()
from onceproof.__main__ import main
main()
"""

#: Variables that set a stream's encoding: a test that sets one of them must not inherit another.
ENCODING = {"PYTHONIOENCODING", "PYTHONUTF8", "PYTHONCOERCECLOCALE", "LC_ALL", "LC_CTYPE", "LANG"}


def check(tmp_path: Path, outcome: str, redirect: str, *words: str, env: dict[str, str] | None = None):  # type: ignore[no-untyped-def]
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    run = tmp_path / "run"
    run.mkdir(exist_ok=True)
    line = f'"{sys.executable}" "{tmp_path}/program.py" {outcome} check "{run}" {" ".join(words)} {redirect}'
    inherited = {name: value for name, value in os.environ.items() if name not in ENCODING}
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, check=False, env=inherited | (env or {}), timeout=60
    )


@pytest.mark.parametrize(
    ("outcome", "words", "redirect"),
    [
        ("held", ("--json",), "> /dev/full"),
        ("held", (), ">&-"),
        ("violated", (), "> /dev/full"),
        ("inconclusive", ("--json",), ">&-"),
    ],
)
def test_a_result_that_cannot_be_written_is_an_error(
    tmp_path: Path, outcome: str, words: tuple[str, ...], redirect: str
) -> None:
    done = check(tmp_path, outcome, redirect, *words)
    assert done.returncode == 4, done.stderr
    assert b"could not be written to standard output" in done.stderr
    assert str(tmp_path / "run" / "verdict.json").encode() in done.stderr
    assert b"Traceback" not in done.stderr


def test_the_exit_code_is_the_same_with_both_streams_closed(tmp_path: Path) -> None:
    assert check(tmp_path, "violated", ">&- 2>&-").returncode == 4
    assert check(tmp_path, "held", "> /dev/full 2>&1", "--json").returncode == 4


def test_an_unwritable_stderr_does_not_lose_the_result(tmp_path: Path) -> None:
    done = check(tmp_path, "held", "2> /dev/full", "--json")
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (0, "held")
    assert check(tmp_path, "held", "2>&-", "--json").returncode == 0


@pytest.mark.parametrize(("outcome", "code"), [("held", 0), ("violated", 1)])
def test_a_reader_that_closes_the_pipe_does_not_change_the_exit_code(tmp_path: Path, outcome: str, code: int) -> None:
    done = check(tmp_path, outcome, "| true; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (code, b"")


@pytest.mark.parametrize("words", ["--help", "list", "nosuch"])
def test_commands_without_a_verdict_report_unwritable_output_too(tmp_path: Path, words: str) -> None:
    line = f'"{sys.executable}" -m onceproof {words} > /dev/full'
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=False, timeout=60)
    assert done.returncode == (2 if words == "nosuch" else 4), done.stderr
    piped = f'"{sys.executable}" -m onceproof {words} | true; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", piped], capture_output=True, check=False, timeout=60)
    assert done.returncode == (2 if words == "nosuch" else 0), done.stderr


@pytest.mark.parametrize(
    "env", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {}]
)
@pytest.mark.parametrize("words", [(), ("--json",)])
def test_every_stream_can_carry_the_report(tmp_path: Path, env: dict[str, str], words: tuple[str, ...]) -> None:
    done = check(tmp_path, "violated", "", *words, env=env)
    assert (done.returncode, b"Traceback" in done.stderr) == (1, False), done.stderr
    assert b"\x1b" not in done.stdout
    if words:
        assert json.loads(done.stdout)["reasons"] == ["ümläut ─ \x1b[2J \ud800 end"]
    else:
        text = done.stdout.decode("utf-8")
        assert r"\x1b[2J \ud800 end" in text
        assert ("---------" in text) == bool(env), "without Unicode a rule is drawn in ASCII"


def nasty(text: str) -> ScenarioResult:
    verdict = Verdict(text, Outcome.VIOLATED, StatedClaim({"delivery": text}), (text,))
    return ScenarioResult(text, ExpectedVerdict(), verdict, Path("/runs/x"))


@pytest.mark.parametrize("color", [False, True])
def test_a_report_shows_control_characters_instead_of_sending_them(color: bool) -> None:
    result = nasty("a\x1b[31mb\x07c\x9b2Jd\u202ee\rf\ud800g")
    from onceproof.reports.page import Look
    from onceproof.reports.terminal import TerminalReport

    shown = TerminalReport(Look(color=color)).render(RunSet((result, result)))
    for acting in ("\x1b[31mb", "\x07", "\x9b", "\u202e", "\r", "\ud800"):
        assert acting not in shown
    for seen in (r"a\x1b[31mb", r"c\x9b2Jd\u202ee", r"f\ud800g"):
        assert seen in shown


@pytest.mark.parametrize("text", ["a\x1b[31mb\x00c\ud800d\ufffee", "", "\n"])
def test_junit_is_valid_xml_whatever_a_job_prints(text: str) -> None:
    from onceproof.base.errors import EnvironmentProblem

    failed = ScenarioResult("s", ExpectedVerdict(), error=EnvironmentProblem(text))
    for result in (nasty(text), failed):
        rendered = reports.get("junit")().render(RunSet((result,)))
        ET.fromstring(rendered.encode("utf-8"))


def test_visible_text_is_kept() -> None:
    assert visible("tab\tand\nnewline, ümläut, 😀 and ─") == "tab\tand\nnewline, ümläut, 😀 and ─"


def test_the_report_is_printed_even_if_junit_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from onceproof.cli import run as cli_run
    from onceproof.cli.app import app

    verdict = Verdict("mine", Outcome.HELD, StatedClaim({"delivery": "effectively-once"}), ("because",))
    write_verdict(tmp_path, verdict)
    result = ScenarioResult("mine", ExpectedVerdict(), verdict, tmp_path)
    loaded = load_file(find("naive-append"))
    monkeypatch.setattr(cli_run, "load_all", lambda given, profile=None: [loaded])
    monkeypatch.setattr(cli_run, "_run_one", lambda *_: result)
    for words in ([], ["--json"]):
        done = CliRunner().invoke(app, ["run", "mine", "--junit", "/dev/full", *words])
        assert done.exit_code == 4
        assert "cannot write /dev/full" in done.stderr
        assert json.loads(done.stdout)["verdict"] == "held" if words else "HELD" in done.stdout
