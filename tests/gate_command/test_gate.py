"""The command `gate`: its settings, its order, its baseline, and what fails it."""

from __future__ import annotations

import json
import resource
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onceproof.api import runs
from onceproof.api.runs import Run
from onceproof.base.errors import EnvironmentProblem, UsageError
from onceproof.cli.app import app
from onceproof.gate import session, settings
from onceproof.gate.baseline import Baseline, Coverage
from onceproof.gate.session import Status
from onceproof.gate.settings import GateScenario
from onceproof.judge.findings import FaultReport, Finding, Outcome, StatedClaim, Verdict
from onceproof.scenario_files.load import LoadedScenario, load
from onceproof.scenario_files.shipped import find

GATE = """
[stack.remote]
kafka = "not read by the gate"

[gate]
scenarios = [
    {path = "good.yaml"},
    {path = "bad.yaml", expect = "violated", anomaly = "duplicate"},
]
"""


def verdict(name: str, outcome: Outcome = Outcome.HELD, *anomalies: str, hits: int = 1, **more: Any) -> Verdict:
    faults = tuple(FaultReport("crash", "driver", "q", n, "after-sink-commit", True, True, n < hits) for n in range(2))
    findings = tuple(Finding(anomaly, "table", 2, "2 extra rows") for anomaly in anomalies)
    counts = {"input": 10, "expected.table": 10, "effects.table": 10}
    values = {"claim": StatedClaim({"delivery": "effectively-once"}), "counts": counts, "seconds": 30.0, **more}
    return Verdict(name, outcome, reasons=("why",), findings=findings, faults=faults, **values)


def no_qualification(*_: object) -> Any:
    raise AssertionError("no qualification is listed")


Runs = dict[str, Verdict | Exception]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """A folder with a gate of two scenarios. A run has the verdict of this mapping."""
    verdicts: Runs = {"good": verdict("good"), "bad": verdict("bad", Outcome.VIOLATED, "duplicate")}
    (tmp_path / "onceproof.toml").write_text(GATE)
    for name in ("good", "bad", "other"):
        (tmp_path / f"{name}.yaml").write_text("base: ack-lost-transactional\n")

    def run(loaded: LoadedScenario, *, runs_dir: Path, listeners: object, shared: object) -> Run:
        found = verdicts[loaded.scenario.name]
        if isinstance(found, Exception):
            raise found
        return Run(loaded.scenario, found, runs_dir / "one")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "run", run)
    return verdicts


def gate(*options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["gate", *options])
    return done.exit_code, done.output


def results() -> dict[str, tuple[str, str]]:
    done = CliRunner().invoke(app, ["gate", "--json"])
    rows = json.loads(done.stdout)["scenarios"]
    return {row["path"]: (row["result"], row["why"]) for row in rows}


def test_without_a_baseline_the_gate_says_how_to_make_one(project: Runs) -> None:
    code, text = gate()
    assert code == 2 and "there is no baseline onceproof-gate.json" in text and "onceproof gate --update" in text


def test_a_baseline_is_made_and_then_met(project: Runs) -> None:
    code, text = gate("--update")
    assert code == 0 and "wrote the baseline onceproof-gate.json" in text
    stored = json.loads(Path("onceproof-gate.json").read_text())
    assert stored["version"] == 3 and stored["scenarios"]["good.yaml"]["faults"] == [
        "crash driver, batch 0 @ after-sink-commit of q"
    ]
    code, text = gate()
    assert code == 0 and "2 passed" in text
    assert results()["bad.yaml"] == ("passed", "duplicate 2, 1 fault hit")


@pytest.mark.parametrize("text", ["<<<<<<< ours\n{}\n", '{"version": 9, "scenarios": {}}', ""])
def test_a_damaged_baseline_is_refused_and_replaced(project: Runs, text: str) -> None:
    Path("onceproof-gate.json").write_text(text)
    code, said = gate()
    assert code == 2 and "onceproof gate --update" in said
    code, said = gate("--update")
    assert code == 0 and "wrote the baseline onceproof-gate.json" in said
    assert gate()[0] == 0


@pytest.mark.parametrize(
    ("name", "found", "code", "status", "why"),
    [
        ("good", verdict("good", Outcome.VIOLATED, "lost-write"), 1, "regression", "lost-write 2"),
        ("good", verdict("good", Outcome.VIOLATED), 1, "regression", "why"),
        ("bad", verdict("bad"), 1, "not caught", "held, although it is known to be bad"),
        ("bad", verdict("bad", Outcome.VIOLATED, "lost-write"), 1, "not caught", "no duplicate, but lost-write 2"),
        ("good", verdict("good", hits=0), 1, "less coverage", "no longer hit: crash driver, batch 0 @"),
        ("good", verdict("good", counts={"input": 3}), 1, "less coverage", "3 input records instead of 10"),
        ("good", verdict("good", counts={"input": 10}), 1, "less coverage", "no longer judged: output table"),
        (
            "good",
            verdict("good", counts={"input": 10, "expected.table": 0}),
            1,
            "less coverage",
            "0 rows expected in table instead of 10",
        ),
        (
            "good",
            verdict("good", claim=StatedClaim({"delivery": "at-least-once"})),
            1,
            "less coverage",
            "another claim: delivery",
        ),
        (
            "good",
            verdict("good", not_evaluated={"reordered": "x"}),
            1,
            "less coverage",
            "no longer evaluated: reordered",
        ),
        ("good", verdict("good", ignored={"t": ["at"]}), 1, "less coverage", "no longer compared: t.at"),
        ("good", verdict("good", Outcome.INCONCLUSIVE), 3, "inconclusive", "why"),
        ("good", EnvironmentProblem("no Java"), 4, "error", "no Java"),
    ],
)
def test_what_fails_the_gate(
    project: Runs, name: str, found: Verdict | Exception, code: int, status: str, why: str
) -> None:
    gate("--update")
    project[name] = found
    exit_code, _ = gate()
    assert exit_code == code
    seen = results()[f"{name}.yaml"]
    assert seen[0] == status and why in seen[1]
    before = Path("onceproof-gate.json").read_text()
    updated, text = gate("--update")
    if status == "less coverage":  # accepted: the new baseline is to be reviewed and committed
        assert updated == 0 and Path("onceproof-gate.json").read_text() != before
    else:
        assert updated == code and Path("onceproof-gate.json").read_text() == before
        assert "was not written" in text


def test_a_known_bad_scenario_must_show_the_anomalies_that_it_expects_itself(project: Runs) -> None:
    settings = Path("onceproof.toml")
    settings.write_text(settings.read_text().replace(', anomaly = "duplicate"', ""))
    project["bad"] = verdict("bad", Outcome.VIOLATED, "lost-write")
    gate("--update")
    assert results()["bad.yaml"][0] == "passed", "nothing says which anomaly it must show"
    own = "expect: {verdict: violated, anomalies: [duplicate]}\n"
    Path("bad.yaml").write_text("base: ack-lost-transactional\n" + own)
    gate()
    assert results()["bad.yaml"] == ("not caught", "no duplicate, but lost-write 2")


def test_a_baseline_of_version_1_is_read_and_says_what_it_lacks(project: Runs) -> None:
    gate("--update")
    stored = json.loads(Path("onceproof-gate.json").read_text())
    for covered in stored["scenarios"].values():
        del covered["outputs"], covered["oracle"], covered["compared"]
        covered["faults"] = [fault.removesuffix(" of q") for fault in covered["faults"]]
    Path("onceproof-gate.json").write_text(json.dumps({**stored, "version": 1}))
    code, _ = gate()
    lacks = "1 fault hit; the baseline lacks its outputs and its oracle: onceproof gate --update adds it"
    assert code == 0 and results()["good.yaml"] == ("passed", lacks)
    gate("--update")
    assert results()["good.yaml"] == ("passed", "1 fault hit")


def test_a_baseline_of_version_2_is_read_and_says_what_it_lacks(project: Runs) -> None:
    """It did not say where outputs are, and of which query a fault is. So its digests are other ones, and mean nothing."""
    gate("--update")
    file = Path("onceproof-gate.json")
    stored = json.loads(file.read_text())
    for covered in stored["scenarios"].values():
        covered["faults"] = [fault.removesuffix(" of q") for fault in covered["faults"]]
        covered["compared"] = dict.fromkeys(covered["compared"], "another")
    file.write_text(json.dumps({**stored, "version": 2}))
    lacks = "1 fault hit; the baseline lacks how its outputs are compared: onceproof gate --update adds it"
    assert results()["good.yaml"] == ("passed", lacks)
    for covered in stored["scenarios"].values():
        del covered["compared"]
    file.write_text(json.dumps(stored))
    assert results()["good.yaml"] == ("passed", lacks), "somebody removed it"
    gate("--update")
    assert results()["good.yaml"] == ("passed", "1 fault hit")


def test_junit_has_one_case_per_scenario_and_the_results_of_the_gate(project: Runs) -> None:
    gate("--update")
    project["good"] = verdict("good", hits=0)
    Path("onceproof.toml").write_text(GATE.replace('{path = "bad.yaml"', '{path = "other.yaml"}, {path = "bad.yaml"'))
    project["other"] = EnvironmentProblem("no Java \x1b", hint="install it")
    code, _ = gate("--junit", "out/gate.xml", "--budget", "5m")
    root = ET.parse("out/gate.xml").getroot()
    assert code == 1
    assert [root.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    suites = {suite.get("name"): suite for suite in root}
    cases = {case.get("name"): case for case in root.iter("testcase")}
    found = {one.get("name"): one.get("value") for one in suites["bad.yaml"].iter("property")}
    assert found["result"] == "passed" and found["expected"] == found["verdict"] == "violated"
    assert cases["bad.yaml"].find("failure") is None, "a known-bad scenario passes if it is caught"
    failure, error = cases["good.yaml"].find("failure"), cases["other.yaml"].find("error")
    assert failure is not None and failure.get("type") == "less coverage"
    assert str(failure.get("message")).startswith("less coverage: no longer hit: crash driver")
    assert error is not None and error.get("message") == "error: no Java \ufffd"
    assert "VERDICT" not in str(error.text) and "held" in str(cases["good.yaml"].findtext("system-out")).lower()


def test_junit_of_what_did_not_run_is_a_failure_and_an_unwritable_file_fails_at_once(project: Runs) -> None:
    gate("--update")
    assert gate("--budget", "20s", "--junit", "gate.xml")[0] == 3
    kinds = [problem.get("type") for problem in ET.parse("gate.xml").getroot().iter("failure")]
    assert kinds == ["not run", "not run"]
    Path("file").write_text("")
    project["good"] = AssertionError("nothing may start")
    code, text = gate("--junit", "file/gate.xml")
    assert code == 4 and "cannot write file/gate.xml" in text


def test_a_bug_of_onceproof_ends_one_run_and_not_the_gate(project: Runs) -> None:
    gate("--update")
    project["good"] = ZeroDivisionError("division by zero")
    code, text = gate("--junit", "gate.xml")
    assert code == 4 and "ZeroDivisionError: division by zero" in text and "please report this" in text
    (error,) = ET.parse("gate.xml").getroot().iter("error")
    assert error.get("message") == "error: onceproof itself failed"
    assert results()["bad.yaml"][0] == "passed", "the others still run"


def test_a_scenario_that_left_the_gate_is_less_coverage(project: Runs) -> None:
    gate("--update")
    Path("onceproof.toml").write_text('[gate]\nscenarios = [{path = "good.yaml"}, {path = "other.yaml"}]\n')
    project["other"] = verdict("other")
    code, _ = gate()
    found = results()
    assert code == 1 and found["bad.yaml"] == (
        "less coverage",
        "is in the baseline, and the gate no longer lists it",
    )
    assert found["other.yaml"] == ("passed", "1 fault hit; not in the baseline yet")


def test_what_does_not_fit_the_budget_is_not_run(project: Runs) -> None:
    gate("--update")
    code, text = gate("--budget", "20s")
    assert code == 3 and "2 not run" in text


def entry(path: str, expect: Any = "held") -> GateScenario:
    return GateScenario(path=path, expect=expect)


def covered(seconds: float) -> Coverage:
    return Coverage(faults=[], input=1, claim={}, not_evaluated=[], ignored={}, seconds=seconds)


def test_the_most_telling_scenarios_are_first() -> None:
    known = Baseline(scenarios={"long": covered(90), "short": covered(5), "bad": covered(50), "failed": covered(99)})
    given = [entry("new"), entry("long"), entry("short"), entry("bad", "violated"), entry("failed")]
    order = [scenario.path for scenario in session.ordered(given, ["failed"], known)]
    assert order == ["failed", "bad", "short", "long", "new"]


def test_a_run_begins_only_if_the_time_that_it_took_before_is_left() -> None:
    known = Baseline(scenarios={"a": covered(40), "b": covered(40), "c": covered(15)})
    scenario = load(find("naive-append"))
    times = iter([0.0, 0.0, 25.0, 30.0])

    def execute(one: GateScenario) -> Run:
        return Run(scenario, verdict(one.path, hits=0, claim=StatedClaim()), Path("one"))

    result = session.work(
        [entry("a"), entry("b"), entry("c")], known, execute, no_qualification, budget_s=60, clock=lambda: next(times)
    )
    assert [(row.path, row.status) for row in result.rows] == [
        ("a", Status.PASSED),
        ("c", Status.PASSED),
        ("b", Status.NOT_RUN),
    ]
    assert result.outcome.exit_code == 3


def test_a_regression_has_a_fix_and_the_command_that_explains_it(project: Runs) -> None:
    gate("--update")
    project["good"] = verdict("good", Outcome.VIOLATED, "lost-write")
    text = " ".join(gate()[1].split())
    assert "fix: Write rows and progress in one transaction" in text
    assert "explain: onceproof explain lost-write" in text


def test_the_last_failures_are_kept_between_gates(project: Runs, tmp_path: Path) -> None:
    gate("--update")
    project["good"] = verdict("good", Outcome.VIOLATED, "lost-write")
    gate()
    assert session.read_last_failed(tmp_path / "onceproof-runs") == ["good.yaml"]
    (tmp_path / "onceproof-runs" / session.LAST_FAILED).write_text("{")
    assert session.read_last_failed(tmp_path / "onceproof-runs") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no table"),
        ("[gate", "is not TOML"),
        ("[gate]\nscenarios = []", "toml:1: gate: .*: scenarios and qualifications are both empty"),
        (
            '[gate]\nscenarios = [{path = "a.yaml", expct = "held"}]',
            r"toml:2: gate.scenarios\[0\].expct: unknown key 'expct'; did you mean 'expect'\?",
        ),
        (
            '[gate]\nscenarios = [\n{path = "a", expect = "held"},\n{path = "b", expect = "violatd"},\n]',
            r"toml:4: gate.scenarios\[1\].expect: unknown expect 'violatd'; did you mean 'violated'\?",
        ),
        ("[gate]\nscenarios = [{path = 2024-01-01, expect = 1}]", r"gate.scenarios\[0\].expect: .*1 is not allowed"),
        ('[gate]\nscenarios = [{path = "a.yaml", anomaly = "duplicate"}]', "needs expect = 'violated'"),
        (
            '[gate]\nscenarios = [{path = "a", expect = "violated", anomaly = "duplicat"}]',
            "unknown anomaly 'duplicat'; did you mean 'duplicate'",
        ),
        ('[gate]\nscenarios = [{path = "a.yaml"}, {path = "a.yaml"}]', "names 'a.yaml' twice"),
        ('[gate]\nqualifications = [{path = "a"}, {path = "a"}]', "gate.qualifications names 'a' twice"),
        (
            '[gate]\nqualifications = [{path = "a", budget = "5"}]',
            r"gate.qualifications\[0\].budget: .*budget '5' is not a duration",
        ),
        (
            '[gate]\nqualifications = [{path = "a", expect = "bad"}]',
            r"gate.qualifications\[0\].expect: unknown expect 'bad'; known: held, violated",
        ),
    ],
)
def test_wrong_settings_name_the_value(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "onceproof.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        settings.read(file)


@pytest.mark.parametrize("text", [None, "", "[gate]\nscenarios = []"])
def test_the_example_in_a_message_can_be_pasted(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "onceproof.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError) as refused:
        settings.read(file)
    file.write_text(str(refused.value.hint).partition("for example:\n")[2])
    assert [item.path for item in settings.read(file).items] == ["orders.yaml", "old_orders.yaml"]


def test_missing_files_are_usage_errors(project: Runs) -> None:
    assert gate("--settings", "none.toml")[0] == 2
    Path("onceproof.toml").write_text('[gate]\nscenarios = [{path = "none.yaml"}]\n')
    code, text = gate("--update")
    assert code == 2 and "scenario file" in text and "none.yaml" in text
    Path("other.yaml").write_text("base: ack-lost-transactional\nclaim: {order: per-kye}\n")
    Path("onceproof.toml").write_text('[gate]\nscenarios = [{path = "other.yaml"}]\n')
    code, text = gate("--update")
    assert code == 2 and "other.yaml:2" in text
    Path("onceproof-gate.json").write_text('{"version": 4, "scenarios": {}}')
    code, text = gate()
    assert code == 2


def test_a_baseline_that_cannot_be_written_whole_leaves_the_old_one(
    project: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate("--update")
    file = Path("onceproof-gate.json")
    before, known = file.read_text(), Baseline.read(file)
    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, most))  # Python ignores the signal, and the write fails
    try:
        with pytest.raises(EnvironmentProblem, match="cannot write the baseline"):
            known.write(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    assert file.read_text() == before and file.stat().st_mode & 0o777 == 0o644


def test_a_baseline_of_another_version_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "onceproof-gate.json"
    file.write_text('{"version": 4, "scenarios": {}}')
    with pytest.raises(UsageError, match="is not a baseline of version 1, 2 or 3: version"):
        Baseline.read(file)
