"""The pytest plugin: scenario files as tests, the fixture, and how each verdict is reported."""

from __future__ import annotations

import json
import os
import re
import signal
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

import onceproof
from onceproof.api import runs
from onceproof.api.runs import Run
from onceproof.api.scenarios import load, with_chaos
from onceproof.base.errors import EnvironmentProblem
from onceproof.data import datasets
from onceproof.faults.contract import faults
from onceproof.judge.checker import checkers
from onceproof.judge.findings import Finding, Outcome, StatedClaim, Verdict, Witness
from onceproof.kinds.contract import pipelines
from onceproof.oracle import oracles
from onceproof.reports.report import reports
from onceproof.scenario.base import AnyFaultSpec
from onceproof.scenario_files.load import LoadedScenario
from onceproof.stack.sharing.shared import SharedStack
from onceproof.stores.contract import stores

pytest_plugins = ["pytester"]

GOOD = "base: crash-before-offset-transactional\n"
BAD = "base: crash-before-offset-duplicates\nabout: bad\nexpect: {verdict: violated, anomalies: [duplicate]}\n"
FIXTURE = """
from onceproof import Crash

def test_orders(onceproof):
    chaos = [Crash("c1", message=3, after="effect")]
    onceproof.run("orders.yaml", chaos=chaos).assert_held()

def test_bad(onceproof):
    onceproof.run("crash-before-offset-duplicates").assert_violated("duplicate")
"""


def run_as_written(
    scenario: str | Path | LoadedScenario,
    *,
    chaos: Sequence[AnyFaultSpec] | None = None,
    seed: int | None = None,
    runs_dir: Path,
    shared: SharedStack | None,
) -> Run:
    """Replaces the run: its verdict is the one in the file VERDICT, or the one that the scenario expects."""
    loaded = scenario if isinstance(scenario, LoadedScenario) else load(scenario)
    if chaos is not None:
        loaded = with_chaos(loaded, chaos)
    expect = loaded.scenario.expect
    outcome, anomalies = str(expect.verdict), expect.anomalies
    if Path("VERDICT").exists():
        outcome, *anomalies = Path("VERDICT").read_text().split()
    if outcome == "no-machine":
        raise EnvironmentProblem("no port is free", hint="free one")
    found = tuple(Finding(a, "table", 2, "2 extra rows", (Witness({}, "but 2 rows"),)) for a in anomalies)
    verdict = Verdict(loaded.scenario.name, Outcome(outcome), StatedClaim(), ("the job died",), found)
    run_dir = Path(runs_dir) / "one"
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "report.html").write_text("")
    return Run(loaded.scenario, verdict, run_dir)


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Load all registries and public names before the first `pytester` of this file takes its snapshot of modules.

    A run of pytest in this process ends by removing the modules that were imported during it. A registry that was loaded then
    would keep its items, but the next import would register them a second time.
    """
    for registry in (checkers, datasets, faults, oracles, pipelines, reports, stores):
        assert registry.names()
    assert all(hasattr(onceproof, name) for name in dir(onceproof))


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with one scenario. Its runs are those of `run_as_written`, as pytest runs in this process."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(runs, "run", run_as_written)
    write(pytester, "good.onceproof.yaml", GOOD)
    return pytester


def write(pytester: pytest.Pytester, name: str, text: str) -> Path:
    path = pytester.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_scenario_file_is_a_test(project: pytest.Pytester) -> None:
    write(project, "sub/bad.onceproof.yaml", BAD)
    result = project.runpytest("-v", "--strict-markers")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["good.onceproof.yaml::good PASSED*", "sub/bad.onceproof.yaml::bad PASSED*"])
    project.runpytest("-k", "bad").assert_outcomes(passed=1, deselected=1)
    project.runpytest("-m", "not onceproof").assert_outcomes(deselected=2)


def test_another_verdict_fails_with_the_line_the_finding_and_the_report(project: pytest.Pytester) -> None:
    write(project, "bad.onceproof.yaml", BAD)
    write(project, "VERDICT", "violated lost-write")
    result = project.runpytest("bad.onceproof.yaml")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "bad.onceproof.yaml:3: bad.onceproof: violated, expected violated, duplicate",
            "  lost-write in table: 2 extra rows",
            "    but 2 rows",
            "report: */onceproof-runs/one/report.html",
        ]
    )
    assert "Traceback" not in result.stdout.str() and ".py:" not in result.stdout.str()


def test_inconclusive_fails_unless_an_option_says_otherwise(project: pytest.Pytester) -> None:
    write(project, "VERDICT", "inconclusive")
    project.runpytest().assert_outcomes(failed=1)
    project.runpytest("--onceproof-inconclusive=skip").assert_outcomes(skipped=1)
    project.runpytest("-o", "onceproof_inconclusive=skip").assert_outcomes(skipped=1)
    write(project, "doubt.onceproof.yaml", GOOD + "expect: {verdict: inconclusive}\n")
    project.runpytest("--onceproof-inconclusive=skip").assert_outcomes(passed=1, skipped=1)
    project.runpytest("doubt.onceproof.yaml").assert_outcomes(passed=1)
    wrong = project.runpytest("-o", "onceproof_inconclusive=pass")
    assert wrong.ret == pytest.ExitCode.USAGE_ERROR
    wrong.stderr.fnmatch_lines(["*onceproof_inconclusive = pass: use fail or skip"])


def test_a_problem_of_the_machine_is_an_error(project: pytest.Pytester) -> None:
    write(project, "VERDICT", "no-machine")
    write(project, "orders.yaml", GOOD)
    project.makepyfile(test_jobs=FIXTURE)
    result = project.runpytest("--junitxml=out.xml")
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(["error: no port is free", "  free one"])
    suite = ET.parse(project.path / "out.xml").getroot()[0]
    assert suite.get("errors") == "3" and suite.get("failures") == "0"


def test_without_java_a_developer_skips_and_ci_errs(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, "VERDICT", "no-machine")
    monkeypatch.setenv("JAVA_HOME", str(project.path / "none"))
    result = project.runpytest("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*JAVA_HOME is *"])
    monkeypatch.setenv("CI", "true")
    project.runpytest().assert_outcomes(errors=1)


def test_a_wrong_scenario_is_an_error_with_its_line(project: pytest.Pytester) -> None:
    write(project, "wrong.onceproof.yaml", "base: crash-before-offset-transactional\nclaim: {order: per-kye}\n")
    result = project.runpytest("wrong.onceproof.yaml")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["error: *wrong.onceproof.yaml:2:*unknown order 'per-kye'*"])


def test_the_fixture_runs_scenarios_with_other_faults(project: pytest.Pytester) -> None:
    write(project, "orders.yaml", GOOD)
    project.makepyfile(test_jobs=FIXTURE)
    project.runpytest("test_jobs.py").assert_outcomes(passed=2)
    write(project, "VERDICT", "violated duplicate")
    result = project.runpytest("test_jobs.py")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["E * orders: violated, expected held", "E * duplicate in table: 2 extra rows", "E *report: */report.html"]
    )
    assert len(re.findall(r"^\S+\.py:\d+:", result.stdout.str(), re.MULTILINE)) == 1, "one frame: the test itself"


def test_scenarios_listed_in_pyproject_are_tests_with_markers(project: pytest.Pytester) -> None:
    write(project, "scenarios/one.yaml", GOOD)
    write(project, "scenarios/two.yaml", BAD)
    write(project, "scenarios/unlisted.yml", GOOD)
    write(project, "tests/test_nothing.py", "def test_nothing(): pass\n")
    write(
        project,
        "pyproject.toml",
        '[tool.pytest.ini_options]\ntestpaths = ["tests"]\nmarkers = ["slow"]\n'
        '[tool.onceproof]\nscenarios = [{path = "scenarios/*.yaml", markers = ["slow"]}]\n',
    )
    project.runpytest("--strict-markers").assert_outcomes(passed=3)
    project.runpytest("-m", "slow").assert_outcomes(passed=2, deselected=1)
    project.runpytest("tests").assert_outcomes(passed=1)
    project.runpytest("scenarios").assert_outcomes(passed=2)


def test_listed_scenarios_outside_of_the_root_folder_run(project: pytest.Pytester) -> None:
    write(project, "shared/one.yaml", GOOD)
    root = project.mkdir("root")
    (root / "two.yaml").write_text(GOOD)
    for ini in ("", '[tool.pytest.ini_options]\ntestpaths = ["tests"]\n'):
        text = f'{ini}[tool.onceproof]\nscenarios = ["../shared/*.yaml", "../root/two.yaml", "../shared/../root/two.yaml"]\n'
        (root / "pyproject.toml").write_text(text)
        (root / "tests").mkdir(exist_ok=True)
        project.chdir()
        os.chdir(root)
        project.runpytest("--rootdir=.").assert_outcomes(passed=2)
        project.runpytest("--rootdir=.", "../shared").assert_outcomes(passed=1)


def test_a_listed_scenario_that_pytest_would_leave_out_is_a_usage_error(project: pytest.Pytester) -> None:
    write(project, "build/one.yaml", GOOD)
    settings = '[tool.onceproof]\nscenarios = ["build/one.yaml"]\n'
    write(project, "pyproject.toml", settings)
    result = project.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*build/one.yaml is in folder 'build', which pytest leaves out by norecursedirs (build)*"]
    )
    project.runpytest("build/one.yaml").assert_outcomes(passed=1)
    for ini in ('norecursedirs = ["dist"]', 'testpaths = ["build/one.yaml", "good.onceproof.yaml"]'):
        write(project, "pyproject.toml", f"[tool.pytest.ini_options]\n{ini}\n{settings}")
        project.runpytest().assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ('["a**/b.yaml"]', "'a**/b.yaml'"),
        ('"a.yaml"', "scenarios is 'a.yaml', not a list"),
        ('["nosuch.yaml"]', "no file is named 'nosuch.yaml'"),
        ('[{file = "a.yaml"}]', "{'file': 'a.yaml'} is not a path"),
        ('[{path = "a.yaml", markers = "slow"}]', "is not a path"),
        ("[", "is not TOML"),
    ],
)
def test_a_wrong_list_is_a_usage_error(project: pytest.Pytester, entries: str, message: str) -> None:
    write(project, "pyproject.toml", f"[tool.onceproof]\nscenarios = {entries}\n")
    result = project.runpytest("-c", "/dev/null", "--rootdir=.")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()


def test_junit_has_the_verdict_and_the_run(project: pytest.Pytester) -> None:
    write(project, "VERDICT", "violated duplicate")
    project.runpytest("--junitxml=out.xml", "--onceproof-runs=elsewhere")
    case = ET.parse(project.path / "out.xml").getroot()[0][0]
    properties = {one.get("name"): one.get("value") for one in case.iter("property")}
    assert properties == {
        "onceproof.scenario": "good.onceproof",
        "onceproof.verdict": "violated",
        "onceproof.anomalies": "duplicate",
        "onceproof.run": str(project.path / "elsewhere" / "one"),
    }


def test_junit_can_be_without_properties_for_jenkins_xunit(project: pytest.Pytester) -> None:
    project.runpytest("--junitxml=out.xml", "-o", "onceproof_junit_properties=false")
    root = ET.parse(project.path / "out.xml").getroot()
    assert len(list(root.iter("testcase"))) == 1 and list(root.iter("properties")) == []


def test_nothing_depends_on_the_plugin(project: pytest.Pytester) -> None:
    without = project.runpytest("-p", "no:onceproof")
    assert without.ret == pytest.ExitCode.NO_TESTS_COLLECTED


SERVICES = """
import signal
from pathlib import Path
from types import SimpleNamespace
from onceproof.api import runs
from onceproof.stack.processes.owner import Owner

if HANDLED:
    signal.signal(signal.SIGTERM, lambda *_: None)

def run(scenario, *, shared, **_):  # its services are one real process
    owner = Owner()
    service = owner.start("service", ["sleep", "600"], log=owner.scratch / "log")
    Path("PID").write_text(str(service.pid))
    shared._running = SimpleNamespace(owner=owner)
    raise AssertionError("as in any failed test")

runs.run = run
"""
SIGNALLED = """
import os, signal, time

def test_that_needs_services(onceproof):
    onceproof.run("good.onceproof.yaml")

def test_in_which_a_signal_comes():
    os.kill(os.getpid(), getattr(signal, NAME))
    time.sleep(0 if HANDLED else 60)
"""


@pytest.mark.parametrize(("name", "handled"), [("SIGTERM", False), ("SIGHUP", False), ("SIGTERM", True)])
def test_a_signal_between_runs_stops_the_services(pytester: pytest.Pytester, name: str, handled: bool) -> None:
    write(pytester, "good.onceproof.yaml", GOOD)
    pytester.makeconftest(f"HANDLED = {handled}\n{SERVICES}")
    pytester.makepyfile(test_signal=f"NAME, HANDLED = {name!r}, {handled}\n{SIGNALLED}")
    result = pytester.runpytest_subprocess("test_signal.py")
    pid = int((pytester.path / "PID").read_text())
    try:
        assert not psutil.pid_exists(pid)
        if handled:
            result.assert_outcomes(passed=1, failed=1)
        else:
            assert result.ret == pytest.ExitCode.INTERRUPTED
            result.stdout.fnmatch_lines([f"*interrupted by {name}*", "* 1 failed*"])
    finally:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


def test_with_xdist_the_workers_collect_the_same(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is outside of `testpaths`. No run: the environment problem that each one ends with is the workers' own."""
    monkeypatch.setenv("JAVA_HOME", str(pytester.path / "none"))
    monkeypatch.delenv("CI", raising=False)
    write(pytester, "tests/one.onceproof.yaml", GOOD)
    write(pytester, "other/two.yaml", GOOD)
    write(
        pytester,
        "pyproject.toml",
        '[tool.pytest.ini_options]\ntestpaths = ["tests"]\n[tool.onceproof]\nscenarios = ["other/two.yaml"]\n',
    )
    pytester.runpytest_subprocess("-n", "2").assert_outcomes(skipped=2)


def test_without_a_scenario_it_imports_nothing_heavy(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import json, sys
        def test_loaded():
            print(json.dumps(sorted(name for name in sys.modules if name.split(".")[0] in ("onceproof", "pydantic"))))
        """
    )
    result = pytester.runpytest_subprocess("-s", "-q")
    loaded = json.loads(next(line for line in result.outlines if line.startswith("[")).removesuffix("."))
    assert loaded == [
        "onceproof",
        "onceproof.pytest_plugin",
        "onceproof.pytest_plugin.listed",
        "onceproof.pytest_plugin.plugin",
    ]
