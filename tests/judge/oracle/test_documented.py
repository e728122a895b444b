"""docs/oracles.md describes every oracle, and its examples are valid. The example in docs/add-an-oracle.md works."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ruamel.yaml import YAML

from onceproof.expectation.call import tables_of
from onceproof.oracle import oracles
from onceproof.oracle.contract.expectation import RESERVED
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec

from ...guides import executed

pytestmark = pytest.mark.sources

DOCUMENT = (Path(__file__).parents[3] / "docs" / "oracles.md").read_text(encoding="utf-8")
GUIDE = "add-an-oracle.md"
EXAMPLES = [YAML(typ="safe").load(block) for block in re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)]


def test_every_oracle_has_its_section() -> None:
    described = set(re.findall(r"^## `(\w+)`$", DOCUMENT, re.MULTILINE))
    ours = {
        name for name, oracle in oracles.items() if oracle.__module__.startswith("onceproof.")
    }  # without those of tests
    assert described == ours - {"slice"}  # no scenario can have this one
    shown = [example["oracle"]["kind"] for example in EXAMPLES if "oracle" in example]
    assert set(shown) == described


@pytest.mark.parametrize("example", [e["oracle"] for e in EXAMPLES if "oracle" in e], ids=lambda e: str(e["kind"]))
def test_an_example_is_valid(example: dict[str, Any]) -> None:
    outputs = [name for field in ("columns", "queries") for name in example.get(field, {})] or ["departures"]
    scenario = Scenario.model_validate(
        {
            "name": "documented",
            "input": [{"topic": "flights", "dataset": "flights"}],
            "pipeline": {"command": ["job"]},
            "outputs": {name: {"topic": name, "identity": ["src_partition", "src_offset"]} for name in outputs},
            "oracle": example,
        }
    )
    kind = oracles.get(example["kind"])
    assert kind.problems(kind.Spec.model_validate(example), scenario) == []


def test_reserved_columns_are_described() -> None:
    assert set(re.findall(r"`(_[a-z_]+)`", DOCUMENT.partition("## Naming the cause")[2].partition("## `")[0])) == set(
        RESERVED
    )


def test_the_output_with_a_source_is_valid() -> None:
    (example,) = [e["outputs"]["departures"] for e in EXAMPLES if "outputs" in e]
    assert OutputSpec.model_validate(example).source is not None


def test_the_documented_function_works() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(compile(code, "docs/oracles.md", "exec"), namespace)
    values = [b'{"flight": 1, "carrier": "UA", "dep_time": 517}', b'{"flight": 2, "carrier": "AA", "dep_time": null}']
    flights = pa.table({"partition": [0, 0], "offset": [0, 1], "key": [b"a", b"b"], "value": values})
    answer = tables_of(namespace["departures"]({"flights": flights}), {"departures": ["flight"]})
    row = {"flight": 1, "carrier": "UA", "_partition": 0, "_offset": 0, "_key": b"a"}
    assert answer["departures"].to_pylist() == [row]


@pytest.mark.parametrize("name", ["test_it_needs_an_input_topic", "test_a_record_that_the_output_lacks_is_lost"])
def test_the_guide_s_tests_of_its_oracle_pass(stored_run: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    oracles.names()  # loads the real ones first: oracles registered from here on are removed after the test
    real = {key: item for key, item in oracles._items.items() if not item.__module__.endswith(".mirror")}
    monkeypatch.setattr(oracles, "_items", real)
    executed(GUIDE, "src/onceproof/oracle/mirror.py", monkeypatch)
    test: Callable[[Any], None] = getattr(executed(GUIDE, "tests/judge/oracle/test_mirror.py", monkeypatch), name)
    test(stored_run)
