"""A package that extends onceproof by one item of each kind (``depot/``) is built, installed and used."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from uv import find_uv_bin

from onceproof.base.registry import Registry
from onceproof.faults.contract import Occurrence, faults
from onceproof.judge.checker import checkers
from onceproof.judge.verdict import judge
from onceproof.scenario.model import At
from onceproof.scenario.points import Point

from ..judge.conftest import StoredRun
from ..judge.properties.world import Drawn, fit_for, histories, store

HERE = Path(__file__).parent

#: Kind, as in `onceproof list` -> the item of the package, and a word of its description.
ITEMS = {
    "faults": ("drop-sessions", "session"),
    "checkers": ("blank-row", "identity"),
    "oracles": ("first-per-key", "first record of each key"),
    "datasets": ("scans", "sent twice"),
    "stores": ("csv", "CSV files"),
    "reports": ("tap", "Test Anything Protocol"),
    "decoders": ("scan-telegram", "A scan of a parcel"),
}

SCENARIO = """\
stack: {kafka: {brokers: 1}, postgres: {}}
input:
  - {topic: scans, dataset: scans, options: {parcels: 20, repeat_every: 4}, decode: scan-telegram, chunks: 5}
pipeline:
  command: ["{python}", "{here}/first_scans.py", "--kafka={kafka}", "--folder={output.first}", "--to={checkpoint}/q"]
chaos:
  - {fault: drop-sessions, target: postgres, at: {batch: 2, point: after-offset-log}}
outputs:
  first: {csv: first_scans, identity: [parcel]}
oracle: {kind: first-per-key, topic: scans}
claim: {order: none}
expect: {verdict: violated, anomalies: [blank-row]}
"""

#: As above, but with only names that are looked up when everything else is valid.
LOOKED_UP_LAST = """\
stack: {kafka: {brokers: 1}}
input: [{topic: scans, dataset: orders, decode: scan-telegram}]
pipeline: {command: ["{python}", "{here}/first_scans.py", "{kafka}", "{checkpoint}"], prepare: {topics: {first: {}}}}
outputs: {first: {topic: first, identity: [parcel]}}
oracle: {kind: sql, queries: {first: "SELECT * FROM scans"}}
expect: {verdict: violated, anomalies: [blank-row]}
"""

COMMANDS = {
    **{f"list {kind}": ["list", kind] for kind in ITEMS},
    **{
        f"list {kind} {ITEMS[kind][0]}": ["list", kind, ITEMS[kind][0]]
        for kind in ("faults", "oracles", "datasets", "stores")
    },
    "explain": ["explain", "blank-row"],
    "schema": ["schema"],
    "validate": ["validate", "first_scans.yaml"],
    "validate last": ["validate", "looked_up_last.yaml"],
    "validate typo": ["validate", "typo.yaml"],
    "plan": ["plan", "first_scans.yaml", "--json"],
    "check": ["check", "run", "--report", "tap=report.tap"],
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the package is installed, from its sources."""
    folder = tmp_path_factory.mktemp("depot")
    shutil.copytree(HERE / "depot", folder / "source")  # setuptools builds next to the sources
    options = ["--quiet", "--offline", "--no-cache", "--no-deps", "--no-index", "--no-build-isolation"]
    where = ["--python", sys.executable, "--target", str(folder / "site"), str(folder / "source")]
    subprocess.run([find_uv_bin(), "pip", "install", *options, *where], check=True, timeout=120)
    return folder / "site"


def used(folder: Path, site: Path | None, commands: list[list[str]], *, scenario: str | None = None) -> dict[str, Any]:
    """What ``use_depot.py`` prints, with the packages in ``site`` installed."""
    (folder / "first_scans.py").write_text("")
    (folder / "first_scans.yaml").write_text(SCENARIO)
    (folder / "looked_up_last.yaml").write_text(LOOKED_UP_LAST)
    (folder / "typo.yaml").write_text(SCENARIO.replace("repeat_every", "repeat"))
    (folder / "requests.json").write_text(json.dumps({"commands": commands, "scenario": scenario}))
    done = subprocess.run(
        [sys.executable, HERE / "use_depot.py", folder],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "" if site is None else str(site), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def answers(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Command -> its exit code and output, with the package installed and a run whose CSV files hold one blank row."""
    folder = tmp_path_factory.mktemp("used")
    output = folder / "files/first_scans"
    output.mkdir(parents=True)
    (output / "_SUCCESS").touch()
    expected = [telegram(parcel) for parcel in range(20)]
    for number, rows in enumerate((expected[:12], [*expected[12:19], ["P000019", "", ""]])):
        path = output / f"part-0000{number}.csv"
        path.write_text("\n".join(["parcel,dock,grams", *map(",".join, rows), ""]))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    done = used(folder, installed, [*COMMANDS.values()], scenario="first_scans.yaml")
    return dict(zip(COMMANDS, done["commands"], strict=True)) | {"kinds": done["kinds"], "folder": folder}


def telegram(parcel: int) -> list[str]:
    """The fields of a parcel's scan, as the data set makes it with seed 0."""
    chosen = random.Random(f"0/{parcel}")
    return [f"P{parcel:06d}", f"DOCK-{chosen.randint(1, 9)}", str(chosen.randint(100, 30_000))]


@pytest.fixture(scope="module")
def refusals(answers: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same without the package, with the run that was made with it."""
    folder = tmp_path_factory.mktemp("without")
    shutil.copytree(answers["folder"] / "run", folder / "run")
    commands = {**COMMANDS, "report": ["check", "run", "--report", "tap=report.tap"], "check": ["check", "run"]}
    del commands["validate typo"], commands["plan"]
    done = used(folder, None, [*commands.values()])
    return dict(zip(commands, done["commands"], strict=True)) | {"kinds": done["kinds"]}


@pytest.mark.parametrize("kind", ITEMS)
def test_each_item_is_listed_only_if_the_package_is_installed(
    answers: dict[str, Any], refusals: dict[str, Any], kind: str
) -> None:
    name, word = ITEMS[kind]
    code, text = answers[f"list {kind}"]
    assert code == 0 and name in text and word in " ".join(text.split())
    code, text = refusals[f"list {kind}"]
    assert code == 0 and name not in text.split()


@pytest.mark.parametrize(
    ("kind", "field"),
    [("faults", "postgres; required"), ("oracles", "topic"), ("datasets", "repeat_every"), ("stores", "csv")],
)
def test_the_fields_of_an_item_are_listed(
    answers: dict[str, Any], refusals: dict[str, Any], kind: str, field: str
) -> None:
    command = f"list {kind} {ITEMS[kind][0]}"
    assert answers[command][0] == 0 and field in answers[command][1]
    assert refusals[command][0] == 2 and f"there is no {ITEMS[kind][0]!r} among the {kind}" in refusals[command][1]


def test_the_json_schema_has_each_item(answers: dict[str, Any], refusals: dict[str, Any]) -> None:
    schema = jsonschema.Draft202012Validator(json.loads(answers["schema"][1]))
    for text in (SCENARIO, LOOKED_UP_LAST):
        schema.validate(YAML(typ="safe").load(text))
    for name in ("drop-sessions", "blank-row", "first-per-key", "csv", "scan-telegram", "dataset: scans"):
        wrong = YAML(typ="safe").load(SCENARIO.replace(name, "dataset: scns" if ":" in name else f"no-{name}"))
        assert not schema.is_valid(wrong), name
    without = jsonschema.Draft202012Validator(json.loads(refusals["schema"][1]))
    for text in (SCENARIO, LOOKED_UP_LAST):
        assert not without.is_valid(YAML(typ="safe").load(text))


def test_a_scenario_that_uses_them_is_valid_and_its_options_are_checked(answers: dict[str, Any]) -> None:
    assert answers["validate"] == [0, "first_scans.yaml: valid\n"]
    assert answers["validate last"] == [0, "looked_up_last.yaml: valid\n"]
    code, text = answers["validate typo"]
    assert code == 2 and "3:59: unknown key 'repeat'" in text and "did you mean 'repeat_every'?" in text


def test_without_the_package_each_error_says_what_is_unknown_and_where(refusals: dict[str, Any]) -> None:
    code, text = refusals["validate"]
    assert code == 2 and "Traceback" not in text
    for problem in (
        "3:29: unknown dataset 'scans'",
        "7:13: unknown fault 'drop-sessions'",
        "9:11: unknown key 'csv'",
        "(an output needs one of delta, files, sql_table, table, topic, webhook)",
        "10:16: unknown oracle 'first-per-key'",
    ):
        assert problem in text
    code, text = refusals["validate last"]
    assert code == 2 and "there is no decoder 'scan-telegram'" in text and "unknown anomaly 'blank-row'" in text
    assert refusals["report"][0] == 2 and "there is no report 'tap'" in refusals["report"][1]
    assert refusals["explain"][0] == 2 and "there is no anomaly 'blank-row'" in refusals["explain"][1]
    code, text = refusals["check"]
    assert code == 4 and "run/run.json cannot be used: outputs.first.csv: unknown key 'csv'" in text


def test_the_plan_names_them(answers: dict[str, Any]) -> None:
    plan = json.loads(answers["plan"][1])
    assert plan["input"][0]["dataset"] == "scans" and plan["input"][0]["records"] == 25
    assert plan["faults"][0]["fault"] == "drop-sessions" and plan["faults"][0]["placement"]["exactness"] == "exact"
    assert plan["outputs"][0]["where"] == "csv first_scans" and plan["oracle"].startswith("first-per-key: ")
    assert "blank-row" in plan["checkers"]


def test_the_python_api_has_the_fault(answers: dict[str, Any], refusals: dict[str, Any]) -> None:
    assert answers["kinds"] == ["DropSessions"] and refusals["kinds"] == []


def test_the_anomaly_is_explained(answers: dict[str, Any]) -> None:
    code, text = answers["explain"]
    assert code == 0 and "mode FAILFAST" in text and "wrong-value: a blank row is not the expected one" in text


def test_a_run_is_read_back_decoded_judged_and_reported(answers: dict[str, Any]) -> None:
    """Data set, decoder, oracle, store, checker and report in one verdict."""
    run = json.loads((answers["folder"] / "run/run.json").read_text())
    assert run["outputs"]["first"] == {"columns": {"parcel": "csv", "dock": "csv", "grams": "csv"}, "rows": 20}
    assert run["decoded"]["failed"] is None and run["decoded"]["inputs"]["scans"]["undecodable"] == 0
    code, text = answers["check"]
    assert code == 1, text
    assert "blank-row in first: 1 row with nothing but an identity" in text
    assert "But they are all null at first_scans file 2." in text  # the words of the store
    verdict = json.loads((answers["folder"] / "run/verdict.json").read_text())
    assert {finding["anomaly"]: finding["total"] for finding in verdict["findings"]} == {
        "blank-row": 1,
        "wrong-value": 1,
    }
    assert verdict["counts"]["input"] == 25 and verdict["counts"]["expected.first"] == 20
    assert (answers["folder"] / "report.tap").read_text().splitlines() == [
        "TAP version 13",
        "1..1",
        "not ok 1 - first_scans: violated",
        "# blank-row in first: 1 row with nothing but an identity",
        "# wrong-value in first: 1 row with wrong content in dock, grams: different",
    ]


def test_a_broken_package_is_one_error_that_names_it(installed: Path, tmp_path: Path) -> None:
    shutil.copytree(installed, tmp_path / "site")
    (tmp_path / "site/onceproof_depot/blank_row.py").write_text('"""Broken."""\n\nimport no_such_module\n')
    (tmp_path / "site/onceproof_depot/telegram.py").write_text("def decoded(value):\n    return {}\n")
    commands = [["list", "checkers"], ["list", "decoders"], ["list", "reports"]]
    done = used(tmp_path, tmp_path / "site", commands)["commands"]
    module = tmp_path / "site/onceproof_depot/blank_row.py"
    assert done[0] == [
        4,
        "error: checker 'blank-row' of package onceproof-depot 1.0 cannot be used: "
        f"ModuleNotFoundError: No module named 'no_such_module' ({module}:3)\n"
        "  correct or uninstall that package; its entry point in group onceproof.checkers is "
        "blank-row = onceproof_depot.blank_row\n",
    ]
    code, text = done[1]
    assert code == 4 and text.startswith(
        "error: decoder 'scan-telegram' of package onceproof-depot 1.0 cannot be used: "
    )
    assert "has no attribute 'decode'" in text and len(text.splitlines()) == 2
    assert done[2][0] == 0, "reports are another group"


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Registry[Any]], ModuleType]:
    """Loads a module of the package into this process; what it registers is removed after the test."""

    def load(name: str, registry: Registry[Any]) -> ModuleType:
        registry.names()  # loads it, so that only the module's own items are removed again
        monkeypatch.setattr(registry, "_items", dict(registry._items))
        spec = importlib.util.spec_from_file_location(name, HERE / f"depot/src/onceproof_depot/{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


@histories(1)
@given(data=st.data())
def test_the_damage_of_the_checker_is_found(
    loaded: Callable[[str, Registry[Any]], ModuleType], data: st.DataObject
) -> None:
    if "blank-row" not in checkers.names():
        loaded("blank_row", checkers)
    checker = checkers.get("blank-row")
    (damage,) = checker.damages
    world = data.draw(fit_for(damage))
    named = damage.apply(world, Drawn(data))
    with tempfile.TemporaryDirectory() as folder:
        run = StoredRun(Path(folder))
        store(world, run)
        findings = judge(run.save()).findings
    totals: Counter[tuple[str, str]] = Counter()
    for finding in findings:
        totals[finding.anomaly, finding.output] += finding.total
    assert {what: totals.pop(what) for what in named} == {what: sum(who.values()) for what, who in named.items()}
    assert {anomaly for anomaly, _ in totals} <= checker.comes_with.keys()


@pytest.mark.parametrize(("ended", "is_open", "hit"), [(2, True, True), (0, True, False), (2, False, False)])
def test_the_fault_hits_if_it_ended_sessions_of_an_open_batch(
    loaded: Callable[[str, Registry[Any]], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    ended: int,
    is_open: bool,
    hit: bool,
) -> None:
    module = loaded("drop_sessions", faults)
    rows = [(True,)] * ended + [(False,)]
    connection = SimpleNamespace(execute=lambda *_: SimpleNamespace(fetchall=lambda: rows))
    monkeypatch.setattr(module, "administrator", lambda _: nullcontext(connection))
    monkeypatch.setattr(module, "is_open", lambda *_: is_open)
    postgres = SimpleNamespace(user="pipeline", database="pipeline")
    context: Any = SimpleNamespace(stack=SimpleNamespace(postgres=postgres))
    at = At(batch=2, point=Point.AFTER_OFFSET_LOG)
    fault = faults.get("drop-sessions")(module.DropSessionsSpec(fault="drop-sessions", target="postgres", at=at))
    seen = Occurrence("q", 2, Point.AFTER_OFFSET_LOG, "checkpoint")
    assert fault.matches(seen)
    fault.strike(context, seen)
    assert fault.prove(context, seen).hit is hit
