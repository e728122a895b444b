"""The examples in the documentation are valid."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from onceproof.base.registry import Registry
from onceproof.faults.contract import Fault, Occurrence, faults
from onceproof.scenario.model import At, KafkaStack, StackSpec
from onceproof.scenario.points import Point
from onceproof.scenario_files.load import load

pytestmark = pytest.mark.sources

ROOT = Path(__file__).parent.parent


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def readme_scenario(tmp_path: Path) -> Path:
    (text,) = blocks("README.md", "yaml")
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
        for number, code in enumerate(blocks("docs/add-a-fault.md", "python")):
            module = ModuleType(f"documented_{number}")
            monkeypatch.setitem(sys.modules, module.__name__, module)  # pydantic looks up annotations there
            exec(compile(code, "docs/add-a-fault.md", "exec"), module.__dict__)
    return registry


def test_the_readmes_scenario_is_valid(readme_scenario: Path) -> None:
    scenario = load(readme_scenario)
    assert scenario.name == "my_job"
    assert [fault.at.batch for fault in scenario.chaos] == [2]


@pytest.mark.parametrize("page", ["docs/scenario-files.md", "docs/your-job.md"])
def test_the_documented_scenarios_based_on_the_readmes_one_are_valid(readme_scenario: Path, page: str) -> None:
    (readme_scenario.parent / "my_old_job.py").write_text("")
    texts = blocks(page, "yaml")
    assert texts
    for number, text in enumerate(texts):
        path = readme_scenario.with_name(f"twin{number}.yaml")
        path.write_text(text)
        scenario = load(path)
        assert scenario.base == "./my_job.yaml" and scenario.outputs == load(readme_scenario).outputs


def test_the_guides_faults_are_registered_and_valid(documented: Registry[type[Fault]], readme_scenario: Path) -> None:
    assert documented.names() == ["noop", "slow"] and "noop" not in faults.names()
    scenario = load(readme_scenario)
    for name, target in (("noop", "driver"), ("slow", "postgres")):
        kind = documented.get(name)
        spec = kind.Spec(fault=name, target=target, at=At(batch=1, point=Point.AFTER_OFFSET_LOG))
        assert kind.problems(spec, scenario) == []
        assert kind.placement(spec, scenario).exactness == "exact"


def test_the_guides_slow_fault_requires_postgres(documented: Registry[type[Fault]], readme_scenario: Path) -> None:
    without = load(readme_scenario).model_copy(update={"stack": StackSpec(kafka=KafkaStack(brokers=1), postgres=None)})
    kind = documented.get("slow")
    at = At(batch=1, point=Point.AFTER_COMMIT_LOG)
    assert [p.loc for p in kind.problems(kind.Spec(fault="slow", target="postgres", at=at), without)] == [
        ("at", "point"),
        ("target",),
    ]


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
