"""The Python API: its names are complete, quick to import, and refuse wrong values with the fix."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import find, given, settings

import onceproof
from onceproof.api.faults import class_names
from onceproof.api.runs import Run
from onceproof.api.scenarios import with_chaos
from onceproof.faults.contract import faults
from onceproof.judge.findings import Finding, Outcome, StatedClaim, Verdict, Witness
from onceproof.kinds.contract import pipelines
from onceproof.reports import fixes
from onceproof.scenario_files.checks import crosscheck

SOURCE = Path(onceproof.__file__).read_text(encoding="utf-8")


def names_for_type_checkers() -> dict[str, str]:
    """Public name -> module, of the imports that only a type checker sees."""
    found = {}
    for node in ast.walk(ast.parse(SOURCE)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("onceproof."):
            found |= {alias.asname: node.module or "" for alias in node.names if alias.asname}
    return found


def test_type_checkers_know_every_name_and_where_it_is_defined() -> None:
    kinds = dict.fromkeys(class_names(), "onceproof.api.faults")
    assert names_for_type_checkers() == kinds | {
        name: f"onceproof.{module}" for name, module in onceproof._DEFINED_IN.items()
    }
    assert dir(onceproof) == sorted(names_for_type_checkers())


PAGE = Path(__file__).parents[2] / "docs" / "python-api.md"


@pytest.mark.sources
def test_every_name_that_the_documented_api_raises_or_returns_is_public() -> None:
    text = PAGE.read_text(encoding="utf-8")
    raised = {
        name
        for sentence in re.findall(r"^Raises (.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
        for name in re.findall(r"`([A-Z]\w+)`", sentence)
    }
    assert {"HistoryError", "Interrupted", "ScenarioError", "UsageError", "EnvironmentProblem"} <= raised
    for name in raised:
        assert issubclass(getattr(onceproof, name), BaseException), name
    returned = set(re.findall(r"^\) -> (\w+)$", text, re.MULTILINE))
    assert {"Run", "Verdict", "Qualification", "LoadedScenario"} <= returned
    of_fields = re.findall(r"^\| `\w+` \| `(?:tuple\[)?([A-Z]\w+)(?:, \.\.\.\])?` \|", text, re.MULTILINE)
    assert {"Witness", "FaultReport", "BatchReport", "Cell"} <= set(of_fields)
    for name in returned | {"Witness", "FaultReport", "BatchReport", "Cell", "Outcome"}:
        assert name == "Path" or isinstance(getattr(onceproof, name), type), name
        assert name in ("Path", "Outcome", "AnyFaultSpec") or f"### `{name}`" in text, f"{name} is not explained"


def test_every_registered_fault_has_a_class() -> None:
    registered = {name for kind in pipelines.names() for name in faults.of(kind).names()}
    assert {onceproof.api.faults.kind_named(name).name for name in class_names()} == registered


def test_the_import_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import onceproof; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["onceproof"]


def test_submodules_do_not_hide_the_functions() -> None:
    code = (
        "import onceproof.run, onceproof.qualify.cells, onceproof\n"
        "from onceproof.run import run as inner\n"
        "from onceproof import run, qualify\n"
        "print(callable(onceproof.run), callable(qualify), run is onceproof.run, inner is not run)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 4


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Crsh'"):
        _ = onceproof.Crsh  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'rnu'"):
        _ = onceproof.rnu  # type: ignore[attr-defined]


def test_a_fault_has_the_values_of_a_scenario_file() -> None:
    crash = onceproof.Crash("driver", batch=2, point="after-sink-commit", attempt=1)
    assert crash.at.described() == {"batch": 2, "point": "after-sink-commit"} and crash.fault == "crash"
    consumer = onceproof.Crash("c1", message=3, after="effect", while_={"consumer": "c2", "holds": 1})
    assert consumer.pipeline == "consumers" and "while c2 holds message 1" in str(consumer.at)
    assert onceproof.LostAck("c1", message=3) == onceproof.fault("lost-ack", "c1", message=3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch": 2, "point": "x", "target": "drivr"}, "unknown target 'drivr' .did you mean 'driver'"),
        ({"bach": 2, "point": "after-sink-commit"}, "unknown key 'bach'"),
        ({"batch": "two", "point": "after-sink-commit"}, 'batch: "two" is not a whole number'),
    ],
)
def test_a_wrong_fault_names_the_value_and_the_fix(values: dict[str, object], message: str) -> None:
    with pytest.raises(onceproof.UsageError, match=message):
        onceproof.Crash(values.pop("target", "driver"), **values)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(onceproof.UsageError, match="unknown fault 'crsh'; did you mean 'crash'"):
        onceproof.fault("crsh", "driver", batch=1)


def test_faults_replace_those_of_the_scenario_and_are_checked_against_it() -> None:
    loaded = onceproof.load("naive-append")
    other = onceproof.Crash("driver", batch=1, point="after-commit-log")
    changed = with_chaos(loaded, [other])
    assert changed.scenario.chaos == [other] and changed.scenario.expect.verdict == "held"
    assert changed.scenario.base == loaded.scenario.base and changed.path == loaded.path
    late = onceproof.Crash("driver", batch=99, point="after-sink-commit")
    with pytest.raises(onceproof.UsageError, match=r"chaos\[1\] \(crash driver\)\.at\.batch: .*99"):
        with_chaos(loaded, [other, late])
    with pytest.raises(onceproof.UsageError, match="'crash' in chaos is not a fault"):
        with_chaos(loaded, ["crash"])  # type: ignore[list-item]
    with pytest.raises(onceproof.UsageError, match=r"chaos\[0\]"):
        with_chaos(loaded, [onceproof.Cut("c1", message=1)])


def test_a_missing_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(onceproof.UsageError, match="does not exist"):
        onceproof.check(tmp_path / "none")


def run_with(outcome: Outcome, *findings: Finding, run_dir: Path = Path("runs/one")) -> Run:
    verdict = Verdict("mine", outcome, StatedClaim(), ("the job died",), findings)
    return Run(onceproof.load("naive-append").scenario, verdict, run_dir)


def test_assertions_pass_for_what_they_name() -> None:
    duplicate = Finding("duplicate", "table", 3, "3 extra rows")
    run_with(Outcome.HELD).assert_held()
    run_with(Outcome.VIOLATED, duplicate).assert_violated()
    run_with(Outcome.VIOLATED, duplicate).assert_violated("duplicate")


def test_the_report_is_the_page_of_the_run_if_there_is_one(tmp_path: Path) -> None:
    run = run_with(Outcome.INCONCLUSIVE, run_dir=tmp_path)
    assert run.report == tmp_path / "verdict.json"
    (tmp_path / "report.html").write_text("")
    assert run.report == tmp_path / "report.html"
    with pytest.raises(AssertionError, match=f"report: {tmp_path}/report.html\n"):
        run.assert_held()


def test_assertions_fail_with_the_finding_and_the_path_of_the_report() -> None:
    duplicate = Finding("duplicate", "table", 3, "3 extra rows", (Witness({"id": 1}, "premise\nbut 2 rows"),))
    with pytest.raises(AssertionError) as failure:
        run_with(Outcome.VIOLATED, duplicate).assert_held()
    assert str(failure.value).splitlines() == [
        "mine: violated, expected held",
        "  duplicate in table: 3 extra rows",
        "    premise",
        "    but 2 rows",
        f"    fix: {fixes.of_systems('duplicate', {'Postgres'})[0]}",
        "    explain: onceproof explain duplicate",
        "report: runs/one/verdict.json",
        "judge it again: onceproof check runs/one",
    ]
    with pytest.raises(AssertionError, match="expected violated by lost-write"):
        run_with(Outcome.VIOLATED, duplicate).assert_violated("lost-write")
    with pytest.raises(AssertionError, match=r"inconclusive, expected held\n  the job died"):
        run_with(Outcome.INCONCLUSIVE).assert_held()
    with pytest.raises(onceproof.UsageError, match="unknown anomaly 'duplicat'; did you mean 'duplicate'"):
        run_with(Outcome.VIOLATED, duplicate).assert_violated("duplicat")


@pytest.mark.parametrize("name", ["effectively-once", "ack-lost-duplicates"])
def test_every_schedule_is_valid(name: str) -> None:
    loaded = onceproof.load(name)
    kinds: set[str] = set()

    @settings(max_examples=10)
    @given(onceproof.schedules(loaded, most=3))
    def each(chaos: list[object]) -> None:
        scenario = with_chaos(loaded, chaos).scenario  # type: ignore[arg-type]
        assert 1 <= len(scenario.chaos) <= 3
        assert crosscheck.of_schedule(scenario) == []
        kinds.update(fault.fault for fault in scenario.chaos)

    each()
    assert kinds


def test_a_schedule_shrinks_to_one_early_fault() -> None:
    strategy = onceproof.schedules("naive-append", most=3, kinds=[onceproof.Crash, onceproof.Stall])
    (smallest,) = find(strategy, lambda chaos: any(fault.fault == "crash" for fault in chaos))
    assert smallest.at.described()["batch"] == 1
    assert len(find(strategy, lambda chaos: len(chaos) > 1)) == 2


def test_settings_without_a_default_are_tried() -> None:
    found = find(onceproof.schedules("naive-append", kinds=[onceproof.Reject]), lambda chaos: True)
    assert json.loads(found[0].model_dump_json())["how"]


def test_a_scenario_without_room_for_a_fault_has_no_schedule() -> None:
    with pytest.raises(onceproof.UsageError, match="no fault of Cut can be placed in naive-append"):
        onceproof.schedules("naive-append", kinds=[onceproof.Cut])
