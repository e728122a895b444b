"""The examples in the documents work, and their tables match the code."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceproof.base.registry import Registry
from onceproof.data import datasets
from onceproof.faults.contract import Fault, Occurrence, SpecProblem, faults
from onceproof.judge.checker import checkers
from onceproof.judge.findings import Outcome
from onceproof.oracle import oracles
from onceproof.oracle.contract.decoders import decoders
from onceproof.reports.report import reports
from onceproof.scenario.model import At, Scenario
from onceproof.scenario.points import LEFT_BEHIND, Point
from onceproof.scenario.stack import KafkaStack, StackSpec
from onceproof.scenario.templates import MEANINGS
from onceproof.scenario_files.load import load, read
from onceproof.scenario_files.shipped import find, names
from onceproof.stores.contract import stores

from .guides import GUIDES, executed, files_of

pytestmark = pytest.mark.sources

ROOT = Path(__file__).parent.parent


TWIN = re.compile(r"^base: ", re.MULTILINE)


def page(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page(document), re.DOTALL)


@pytest.fixture
def my_job(tmp_path: Path) -> Path:
    """The whole scenario that docs/scenario-files.md begins with."""
    text = blocks("docs/scenario-files.md", "yaml")[0]
    (tmp_path / "my_job.py").write_text("")
    path = tmp_path / "my_job.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def documented(monkeypatch: pytest.MonkeyPatch) -> Registry[type[Fault]]:
    """The faults of docs/add-a-fault.md, in a separate registry."""
    registry: Registry[type[Fault]] = Registry("fault", "onceproof.checkers", "onceproof.no-such-group")
    faults.names()  # loads the real faults first: faults loaded after this go into the other registry
    with monkeypatch.context() as reading:
        reading.setattr("onceproof.faults.contract.faults", registry)
        for file in ("chaos/noop.py", "chaos/slow.py"):
            executed("add-a-fault.md", file, monkeypatch)
    return registry


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guides_files_pass_the_linter(guide: str) -> None:
    for file, code in files_of(guide).items():
        for command in (["check"], ["format", "--diff"]):
            words = [sys.executable, "-m", "ruff", *command, "--stdin-filename", file, "-"]
            done = subprocess.run(words, cwd=ROOT, input=code, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{file}: {done.stdout}{done.stderr}"


def test_the_documented_scenario_is_valid(my_job: Path) -> None:
    scenario = load(my_job)
    assert scenario.name == "my_job"
    assert [fault.at.batch for fault in scenario.chaos] == [2]


def test_the_documented_twins_are_valid_changes_of_that_scenario(my_job: Path) -> None:
    (my_job.parent / "my_old_job.py").write_text("")
    texts = [text for text in blocks("docs/scenario-files.md", "yaml") if TWIN.search(text)]
    assert len(texts) == 2
    for number, text in enumerate(texts):
        path = my_job.with_name(f"twin{number}.yaml")
        path.write_text(text)
        scenario = load(path)
        assert scenario.base == "./my_job.yaml" and scenario.outputs == load(my_job).outputs


def test_every_field_of_a_scenario_is_in_the_page_about_files() -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", page("docs/scenario-files.md"), re.MULTILINE))
    assert documented >= set(Scenario.model_fields) - {"name"}


def test_every_template_is_in_the_page_about_files() -> None:
    text = page("docs/scenario-files.md").partition("## Templates")[2].partition("\n## ")[0]
    written = {name.strip("{}.") for name in re.findall(r"`([{.][\w.]+}?)`", text)}
    of_oracles = {"input.TOPIC", "expected.OUTPUT"}
    assert written == {name if f"{{{name}}}" in text else name.rpartition(".")[2] for name in {*MEANINGS} - of_oracles}


def test_every_point_is_described_as_in_the_code() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", page("docs/faults.md"), re.MULTILINE))
    described = {Point(name): text.replace("`", "") for name, text in rows.items() if name in {*Point}}
    assert list(described) == list(Point), "in the order of a batch"
    assert all(text.startswith(LEFT_BEHIND[point]) for point, text in described.items())


def test_every_point_names_the_faults_that_shipped_scenarios_place_there() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \| .* \| (.*) \|$", page("docs/faults.md"), re.MULTILINE))
    placed = {
        (fault["at"]["point"], fault["fault"])
        for name in names()
        for fault in read(find(name)).data.get("chaos") or []
        if "point" in fault.get("at", {})
    }
    assert len(placed) > 20
    assert sorted((point, fault) for point, fault in placed if f"`{fault}`" not in rows[point]) == []


@pytest.mark.parametrize("document", ["README.md", "docs/verdicts.md"])
def test_the_documented_exit_codes_are_those_of_the_code(document: str) -> None:
    codes = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", page(document), re.MULTILINE))
    assert {name: int(code) for name, code in codes.items()}.items() <= {str(o): o.exit_code for o in Outcome}.items()
    assert set(codes) >= set(Outcome) - {Outcome.INTERRUPTED}


def test_the_guides_faults_register_and_validate(documented: Registry[type[Fault]], my_job: Path) -> None:
    assert documented.names() == ["noop", "slow"]
    scenario = load(my_job)
    for name, target in (("noop", "driver"), ("slow", "postgres")):
        kind = documented.get(name)
        spec = kind.Spec(fault=name, target=target, at=At(batch=1, point=Point.AFTER_OFFSET_LOG))
        assert kind.problems(spec, scenario) == []
        assert kind.placement(spec, scenario).exactness == "exact"


def test_the_guides_test_of_the_slow_fault_passes(
    documented: Registry[type[Fault]], my_job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its part without services."""
    with_database = load(my_job)
    stack = StackSpec(kafka=KafkaStack(brokers=1), postgres=None)

    def problems(spec: dict[str, Any], *, postgres: bool = True) -> list[SpecProblem]:
        kind = documented.get(spec["fault"])
        scenario = with_database if postgres else with_database.model_copy(update={"stack": stack})
        return kind.problems(kind.Spec.model_validate(spec), scenario)

    test = executed("add-a-fault.md", "tests/chaos/test_slow.py", monkeypatch)
    fast: Callable[..., None] = test.test_it_begins_with_the_plan_and_needs_a_database
    fast(problems)


def test_the_guides_scenario_of_the_slow_fault_is_valid(
    documented: Registry[type[Fault]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "_items", {**faults._items, **documented._items})
    (text,) = blocks("docs/add-a-fault.md", "yaml")
    path = tmp_path / "slow.yaml"
    path.write_text(text)
    scenario = load(path)
    assert [fault.fault for fault in scenario.chaos] == ["slow"] and scenario.expect.verdict == "held"


def test_the_guides_noop_releases_a_parked_sink(documented: Registry[type[Fault]]) -> None:
    released: list[bool] = []
    kind = documented.get("noop")
    fault = kind(kind.Spec(fault="noop", target="driver", at=At(batch=1, point=Point.BEFORE_SINK_COMMIT)))
    context: Any = None  # the no-op does not use it
    parked = Occurrence(
        "q", 1, Point.BEFORE_SINK_COMMIT, "failpoint", "postgres", release=lambda: released.append(True)
    )
    assert fault.matches(parked)
    fault.strike(context, parked)
    assert released == [True]
    assert fault.prove(context, parked).hit


def test_the_page_about_extensions_has_each_group_and_the_example_one_item_of_each() -> None:
    registries: list[Registry[Any]] = [faults, checkers, oracles, datasets, stores, reports, decoders]
    groups = [registry.group for registry in registries]
    assert re.findall(r"^\| [\w ]+ \| `(onceproof\.\w+)` \|", page("docs/extend.md"), re.MULTILINE) == groups
    project = tomllib.loads(page("tests/third_party/depot/pyproject.toml"))["project"]
    assert list(project["entry-points"]) == groups
    for entries in project["entry-points"].values():
        ((name, value),) = entries.items()
        module = value.partition(":")[0].rpartition(".")[2]
        assert f"/{module}.py)" in page("docs/extend.md"), name
