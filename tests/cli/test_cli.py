from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import types
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml.comments import CommentedMap
from typer.core import TyperGroup as Group
from typer.main import get_command
from typer.testing import CliRunner, Result

import onceproof
from onceproof.base.errors import EnvironmentProblem, Interrupted, UsageError
from onceproof.base.timeline import Event
from onceproof.cli import run as cli_run
from onceproof.cli.app import app
from onceproof.faults.evidence.item import Evidence
from onceproof.judge.findings import FaultReport, Finding, Outcome, StatedClaim, Verdict
from onceproof.judge.verdict import write_verdict
from onceproof.scenario.model import ExpectedVerdict, Scenario
from onceproof.scenario_files.document import Document, Extent
from onceproof.scenario_files.load import LoadedScenario
from onceproof.scenario_files.merge import merge

DUPLICATE = Finding("duplicate", "rows", 5, "five twice")
VIOLATED_EXPECTED = ExpectedVerdict(verdict="violated", anomalies=["duplicate"])


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def verdict(name: str, outcome: Outcome) -> Verdict:
    findings = (DUPLICATE,) if outcome is Outcome.VIOLATED else ()
    return Verdict(name, outcome, StatedClaim({"delivery": "effectively-once"}), ("because",), findings)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """``world(name=(expect, outcome, exception or signal), ...)``: scenarios whose "run" ends so; returns the list of calls."""

    def build(**scenarios: tuple[ExpectedVerdict, Outcome | BaseException]) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def run(
            given: LoadedScenario,
            *,
            runs_dir: Path,
            seed: int | None,
            listeners: list[Callable[[Event], None]],
            shared: object,
            tier: str,
        ) -> Any:
            path = given.path
            calls.append({"scenario": path.stem, "runs_dir": runs_dir, "seed": seed, "shared": shared, "tier": tier})
            listeners[0](Event(0.0, "phase", {"name": "run"}))
            end = scenarios[path.stem][1]
            if isinstance(end, signal.Signals):
                signal.raise_signal(end)
            if isinstance(end, BaseException):
                raise end
            return types.SimpleNamespace(verdict=verdict(path.stem, end), run_dir=tmp_path / path.stem)

        module = types.ModuleType("onceproof.run")
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "onceproof.run", module)
        loaded = {
            name: LoadedScenario(
                scenario(name, expect), Path(f"{name}.yaml"), merge([Document("", CommentedMap(), {}, Extent())])
            )
            for name, (expect, _) in scenarios.items()
        }
        monkeypatch.setattr(cli_run, "load_all", lambda given, profile=None: [loaded[name] for name in given])
        monkeypatch.setattr(cli_run, "names", lambda: list(loaded))
        return calls

    return build


def scenario(name: str, expect: ExpectedVerdict) -> Scenario:
    return Scenario.model_validate(
        {
            "name": name,
            "input": [{"topic": "t", "dataset": "numbers"}],
            "pipeline": {"command": ["true"]},
            "outputs": {"rows": {"topic": "out", "identity": ["id"]}},
            "oracle": {"kind": "reference"},
            "expect": expect.model_dump(),
        }
    )


@pytest.mark.parametrize(
    "end, code",
    [
        (Outcome.HELD, 0),
        (Outcome.VIOLATED, 1),
        (UsageError("no"), 2),
        (Outcome.INCONCLUSIVE, 3),
        (EnvironmentProblem("no Java"), 4),
        (RuntimeError("a bug"), 4),
        (Interrupted("interrupted by SIGTERM"), 130),
        (KeyboardInterrupt(), 130),
        (signal.SIGTERM, 130),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_single_run_exits_with_its_own_code(world: Any, end: Any, code: int, as_json: bool) -> None:
    world(mine=(ExpectedVerdict(), end))
    result = invoke("run", "mine", *(["--json"] if as_json else []))
    assert result.exit_code == code
    if as_json:
        assert json.loads(result.stdout)["scenario"] == "mine"


def test_a_single_violated_run_exits_with_1_even_if_that_is_expected(world: Any) -> None:
    world(naive=(VIOLATED_EXPECTED, Outcome.VIOLATED))
    result = invoke("run", "naive")
    assert result.exit_code == 1
    assert "expected   violated, duplicate: met" in result.stdout


@pytest.mark.parametrize(
    "ends, code",
    [
        ([(VIOLATED_EXPECTED, Outcome.VIOLATED), (ExpectedVerdict(), Outcome.HELD)], 0),
        ([(VIOLATED_EXPECTED, Outcome.HELD), (ExpectedVerdict(), Outcome.HELD)], 1),
        ([(VIOLATED_EXPECTED, Outcome.VIOLATED), (ExpectedVerdict(), Outcome.INCONCLUSIVE)], 3),
        ([(ExpectedVerdict(), EnvironmentProblem("port taken")), (ExpectedVerdict(), Outcome.HELD)], 4),
        ([(ExpectedVerdict(verdict="inconclusive"), Outcome.INCONCLUSIVE)], 0),
    ],
)
def test_all_is_green_when_every_expectation_is_met(world: Any, ends: list[Any], code: int) -> None:
    calls = world(**{f"s{index}": end for index, end in enumerate(ends)})
    result = invoke("run", "--all", "--json")
    assert result.exit_code == code
    assert len(calls) == len(ends), "a failing scenario must not keep the others from running"
    printed = json.loads(result.stdout)
    assert printed["expect_met"] is (code == 0)
    assert Outcome(printed["verdict"]).exit_code == code


def test_several_named_scenarios_exit_with_the_worst(world: Any) -> None:
    world(
        a=(ExpectedVerdict(), Outcome.HELD),
        b=(VIOLATED_EXPECTED, Outcome.VIOLATED),
        c=(ExpectedVerdict(), Outcome.INCONCLUSIVE),
    )
    assert invoke("run", "a", "c").exit_code == 3
    assert invoke("run", "a", "b", "c").exit_code == 1


def test_an_interruption_skips_the_remaining_scenarios(world: Any) -> None:
    calls = world(a=(ExpectedVerdict(), Interrupted("interrupted by SIGINT")), b=(ExpectedVerdict(), Outcome.HELD))
    result = invoke("run", "--all", "--json")
    assert result.exit_code == 130
    assert [call["scenario"] for call in calls] == ["a"]
    assert json.loads(result.stdout)["verdict"] == "interrupted"


def test_options_reach_the_run(world: Any, tmp_path: Path) -> None:
    calls = world(mine=(ExpectedVerdict(), Outcome.HELD))
    invoke("run", "mine", "--runs", str(tmp_path / "r"), "--seed", "7")
    assert calls == [{"scenario": "mine", "runs_dir": tmp_path / "r", "seed": 7, "shared": None, "tier": "real"}]


@pytest.mark.parametrize(("options", "stacks"), [([], 1), (["--fresh-stack"], 0)])
def test_several_scenarios_share_one_stack_unless_each_must_have_its_own(
    world: Callable[..., list[dict[str, Any]]], options: list[str], stacks: int
) -> None:
    calls = world(a=(ExpectedVerdict(), Outcome.HELD), b=(ExpectedVerdict(), Outcome.HELD))
    assert invoke("run", "a", "b", *options).exit_code == 0
    shared = [call["shared"] for call in calls]
    assert len(shared) == 2 and len({id(stack) for stack in shared if stack is not None}) == stacks
    assert shared[0] is shared[1]


def test_json_is_one_object_on_stdout_and_messages_go_to_stderr(world: Any) -> None:
    world(mine=(ExpectedVerdict(), Outcome.VIOLATED))
    result = invoke("run", "mine", "--json")
    assert result.stdout.count("\n") == 1
    printed = json.loads(result.stdout)
    assert printed["anomalies"] == {"duplicate": 5}
    assert "VIOLATED  mine" in result.stderr
    assert "running the job" in result.stderr


def test_an_error_with_json_is_an_object_and_a_message(world: Any) -> None:
    world(mine=(ExpectedVerdict(), EnvironmentProblem("no Java", hint="install Java 21")))
    result = invoke("run", "mine", "--json")
    printed = json.loads(result.stdout)
    assert (printed["verdict"], printed["error"], printed["hint"], printed["exit"]) == (
        "error",
        "no Java",
        "install Java 21",
        4,
    )
    assert "no Java\n  install Java 21" in result.stderr


@pytest.fixture
def left_behind(tmp_path: Path) -> Callable[[Verdict], Path]:
    """A run directory with the verdict that the run wrote when it failed."""

    def build(left: Verdict) -> Path:
        run = tmp_path / "failed-run"
        run.mkdir()
        write_verdict(run, left)
        return run

    return build


def test_an_error_in_a_run_is_reported_with_what_the_run_stored(world: Any, left_behind: Any) -> None:
    error = EnvironmentProblem("broker 2 died", hint="see its log")
    fault = FaultReport("crash", "driver", "q", 2, "after-sink-commit", True, True, True, (Evidence("seen"),))
    left = Verdict(
        "mine",
        Outcome.ERROR,
        StatedClaim({"delivery": "effectively-once"}),
        ("x",),
        faults=(fault,),
        seed=7,
        seconds=4.5,
    )
    error.run_dir = run = left_behind(left)
    world(mine=(ExpectedVerdict(), error))
    result = invoke("run", "mine", "--json")
    printed = json.loads(result.stdout)
    assert printed.pop("faults")[0]["hit"] is True
    assert printed == {
        "scenario": "mine",
        "verdict": "error",
        "reasons": ["x"],
        "claim": {"delivery": "effectively-once"},
        "anomalies": {},
        "findings": [],
        "batches": [],
        "not_evaluated": {},
        "ignored": {},
        "counts": {},
        "run": str(run),
        "seed": 7,
        "seconds": 4.5,
        "expect_met": False,
        "error": "broker 2 died",
        "hint": "see its log",
        "exit": 4,
    }
    assert f"error in mine: broker 2 died\n  see its log\nrun: {run}\nlogs: {run}/logs\n" in result.stderr


def test_an_interruption_is_reported_in_one_line_with_the_run_directory(world: Any, left_behind: Any) -> None:
    error = Interrupted("interrupted by SIGINT")
    error.run_dir = run = left_behind(Verdict("mine", Outcome.INTERRUPTED, StatedClaim(), ("x",), seconds=1.5))
    world(mine=(ExpectedVerdict(), error))
    result = invoke("run", "mine")
    assert result.exit_code == 130
    line = f"interrupted by SIGINT in mine: everything that it started was stopped; run directory: {run}"
    assert line in result.stderr.splitlines()


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"verdict": "held", "scenario": "mine"}'])
def test_an_error_is_reported_even_if_the_run_could_not_store_it(world: Any, tmp_path: Path, text: Any) -> None:
    if text is not None:
        (tmp_path / "verdict.json").write_text(text)
    error = EnvironmentProblem("the disk is full")
    error.run_dir = tmp_path
    world(mine=(ExpectedVerdict(), error))
    printed = json.loads(invoke("run", "mine", "--json").stdout)
    assert (printed["verdict"], printed["run"], printed["claim"], printed["error"]) == (
        *("error", str(tmp_path), None, "the disk is full"),
    )


def test_a_stored_verdict_other_than_a_failure_is_ignored(world: Any, left_behind: Any) -> None:
    error = EnvironmentProblem("the disk is full")
    error.run_dir = left_behind(verdict("mine", Outcome.HELD))
    world(mine=(ExpectedVerdict(), error))
    result = invoke("run", "mine", "--json")
    assert result.exit_code == 4 and json.loads(result.stdout)["verdict"] == "error"


def test_junit_is_written(world: Any, tmp_path: Path) -> None:
    world(a=(ExpectedVerdict(), Outcome.HELD), b=(ExpectedVerdict(), EnvironmentProblem("no Java")))
    report = tmp_path / "deep" / "report.xml"
    invoke("run", "a", "b", "--junit", str(report))
    assert [case.get("name") for case in ET.parse(report).iter("testcase")] == ["a", "b"]


def test_a_junit_file_that_cannot_be_written_is_reported_before_anything_starts(world: Any, tmp_path: Path) -> None:
    calls = world(mine=(ExpectedVerdict(), Outcome.HELD))
    (tmp_path / "file").write_text("")
    result = invoke("run", "mine", "--junit", str(tmp_path / "file" / "report.xml"))
    assert result.exit_code == 4 and "cannot write" in result.stderr
    assert calls == []


@pytest.mark.parametrize(
    "words, expected",
    [
        (["run"], "no scenario is named"),
        (["run", "x", "--all"], "--all already runs every shipped scenario, but 'x' is named too"),
        (["run", "no-such-scenario"], "unknown scenario 'no-such-scenario'"),
        (["run", "missing.yaml"], "scenario file 'missing.yaml' does not exist"),
        (["validate", "missing.yaml"], "scenario file 'missing.yaml' does not exist"),
        (["plan", "missing.yaml"], "scenario file 'missing.yaml' does not exist"),
        (["check", "no-such-run"], "run directory 'no-such-run' does not exist"),
        (["replay", "no-such-run"], "run directory 'no-such-run' does not exist"),
        (["picture", "no-such-run"], "run directory 'no-such-run' does not exist"),
        (["qualify"], "qualify takes either a SCENARIO or --continue DIR, and was given neither"),
        (["explore"], "explore takes either a SCENARIO or --continue DIR, and was given neither"),
        (["explore", "callable-append", "--singles", "--pairs"], "explore was given --singles and --pairs"),
        (["explore", "--continue", "no-such-folder"], "'no-such-folder' is not the directory of an exploration"),
        (["qualify", "x", "--continue", "y"], "qualify takes either a SCENARIO or --continue DIR, and was given both"),
        (["qualify", "no-such-scenario"], "unknown scenario 'no-such-scenario'"),
        (["qualify", "x", "--budget", "soon"], "--budget 'soon' is not a duration"),
        (["qualify", "x", "--budget", "3s"], "--budget '3s' is too short"),
        (["qualify", "--continue", "no-such-folder"], "'no-such-folder' is not the directory of a qualification"),
        (
            ["qualify", "--continue", "x", "--seed", "3"],
            "--seed 3 cannot change the seed of a qualification that is continued",
        ),
        (["list", "falts"], "there is no list of 'falts'; did you mean 'faults'?"),
        (["list", "falts", "crash"], "there is no list of 'falts'; did you mean 'faults'?"),
        (["run", "--sed", "3"], "--sed"),
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_value(words: list[str], expected: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert expected in result.stderr


def test_a_run_without_a_scenario_does_not_print_a_hundred_names() -> None:
    assert "`onceproof list`" in (printed := invoke("run").stderr) and "naive-append" not in printed


def test_a_scenario_with_problems_starts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("inptu: []\n")
    result = invoke("run", str(path), "--json", "--runs", str(tmp_path / "runs"))
    assert result.exit_code == 2
    assert f"{path}:1:1: unknown key 'inptu'" in result.stderr
    assert json.loads(result.stdout)["exit"] == 2
    assert not (tmp_path / "runs").exists()


def test_check_judges_a_stored_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = types.ModuleType("onceproof.judge.verdict")
    module.check = lambda run: verdict("mine", Outcome.VIOLATED)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "onceproof.judge.verdict", module)
    (tmp_path / "run.json").write_text(json.dumps({"scenario": {"expect": VIOLATED_EXPECTED.model_dump()}}))
    result = invoke("check", str(tmp_path), "--json")
    assert result.exit_code == 1
    printed = json.loads(result.stdout)
    assert (printed["expect_met"], printed["run"]) == (True, str(tmp_path))
    junit = tmp_path / "out" / "junit.xml"
    to_file = invoke("check", str(tmp_path), "--report", f"junit={junit}")
    assert "VIOLATED  mine" in to_file.stdout and "<testsuites" in junit.read_text()
    to_stdout = invoke("check", str(tmp_path), "--report", "junit")
    assert to_stdout.stdout.startswith("<?xml") and "VIOLATED  mine" in to_stdout.stderr
    assert json.loads(invoke("check", str(tmp_path), "--report", "json").stdout) == printed
    (tmp_path / "run.json").write_text("{")
    damaged = invoke("check", str(tmp_path))
    assert damaged.exit_code == 4 and "run.json cannot be read" in damaged.stderr


def test_a_plan_shows_the_batches_at_which_faults_can_be_placed() -> None:
    assert (
        "batches     1 to 9, at which faults can be placed: every run reaches them with\n"
        in invoke("plan", "effectively-once").stdout
    )


def test_lists_show_the_contents_of_the_registries() -> None:
    lines = invoke("list").stdout.splitlines()
    first = lines.index("duplicate:")
    assert any(line.startswith("  naive-append ") for line in lines[first : lines.index("", first)])
    assert {len(line) > 120 for line in lines} == {False}
    shipped = {one["name"]: one for one in json.loads(invoke("list", "--json").stdout)["scenarios"]}
    assert {line.split()[0] for line in lines if line.startswith("  ")} == shipped.keys(), (
        "a line for each, not wrapped"
    )
    naive = shipped["naive-append"]
    assert naive["shows"] == ["duplicate"] and naive["about"].endswith(".")
    assert "after-sink-commit" in invoke("list", "points").stdout
    printed = json.loads(invoke("list", "datasets", "--json").stdout)
    assert {"flights", "numbers"} <= {entry["name"] for entry in printed["datasets"]}
    assert "junit" in invoke("list", "reports").stdout


def test_version() -> None:
    assert invoke("--version").stdout == f"onceproof {onceproof.__version__}\n"


def test_help_shows_exit_codes_and_examples() -> None:
    assert "inconclusive" in invoke("--help").stdout
    assert "onceproof run effectively-once" in invoke("run", "--help").stdout


def test_no_word_of_the_help_is_taken_for_markup() -> None:
    """``[stack.NAME]`` would not be shown."""
    command = get_command(app)
    assert isinstance(command, Group)
    groups = [command, *(one for one in command.commands.values() if isinstance(one, Group))]
    commands = [one for group in groups for one in group.commands.values()]
    texts = [(one.name, text) for one in commands for text in (one.help, *(getattr(p, "help", "") for p in one.params))]
    assert len(texts) > 100
    assert [(name, text) for name, text in texts if re.search(r"(?<!\\)\[[a-z]", text or "")] == []


def test_help_imports_no_heavy_packages() -> None:
    script = "import sys, onceproof.cli.app; print(*sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyspark", "duckdb", "confluent_kafka", "pandas", "pyarrow", "pydantic"} & set(modules)


def test_a_reader_that_closes_the_pipe_causes_no_error() -> None:
    command = [sys.executable, "-m", "onceproof", "list", "points"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("naive-append", "--tier", "warm-ish"), "--tier 'warm-ish': there is no such tier"),
        (("ack-lost-duplicates", "--tier", "kept"), "ack-lost-duplicates runs plain consumers"),
    ],
)
def test_a_tier_that_cannot_be_used_is_refused_before_anything_starts(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = invoke("run", *words, "--runs", str(tmp_path / "runs"))
    assert done.exit_code == 2 and said in done.output and not (tmp_path / "runs").exists()
