"""A valid scenario for tests to damage. It has an oracle of its own; each real oracle's tests check what that refuses."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import Field

from onceproof.base.errors import ScenarioError
from onceproof.faults.contract import SpecProblem
from onceproof.oracle import oracles
from onceproof.scenario.model import OracleSpec, Scenario
from onceproof.scenario_files.load import load

BASE = textwrap.dedent("""\
    about: a job
    stack:
      kafka: {brokers: 3}
      postgres: {}
    input:
      - topic: flights
        dataset: flights
        rows: 60000
        chunks: 10
    pipeline:
      command: ["{python}", "{here}/job.py", --kafka, "{kafka}", --topic, "{topic.flights}", '{"a": {"b": 1}}']
      env: {TARGET: "{postgres}"}
      prepare:
        topics:
          enriched: {partitions: 3}
        tables: [planes]
    chaos:
      - fault: crash
        target: driver
        at: {batch: 2, point: after-sink-commit}
    outputs:
      rows: {table: flights_out, identity: [src_partition, src_offset]}
      copy: {topic: enriched, identity: [src_partition, src_offset]}
    oracle: {kind: test-nothing}
    expect: {verdict: held}
    """)


class NothingSpec(OracleSpec):
    kind: Literal["test-nothing"]
    refuse: str | None = Field(None, description="what to report")


class Nothing:
    """Expects no rows; reports a problem on request."""

    Spec: ClassVar[type[OracleSpec]] = NothingSpec
    about: ClassVar[str] = "nothing is expected"

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    @classmethod
    def problems(cls, spec: NothingSpec, scenario: Scenario) -> list[SpecProblem]:
        if spec.refuse is None:
            return []
        return [SpecProblem(("refuse",), f"{spec.refuse} cannot be", f"seen in {scenario.name}")]

    def expect(self, case: Any) -> None:
        raise AssertionError("no test judges with it")


if "test-nothing" not in oracles.names():
    oracles.register("test-nothing")(Nothing)


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """``write(("old", "new"), ...)``: the base scenario with each old text replaced, as a file next to its job."""

    def build(*changes: tuple[str, str], name: str = "mine") -> Path:
        text = BASE
        for old, new in changes:
            assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in the base scenario"
            text = text.replace(old, new)
        (tmp_path / "job.py").write_text("print()\n")
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        return path

    return build


@pytest.fixture
def problems_of(write: Write) -> Callable[..., str]:
    """The problems that loading the damaged scenario reports, without the folder's name in their places."""

    def load_and_fail(*changes: tuple[str, str]) -> str:
        path = write(*changes)
        with pytest.raises(ScenarioError) as caught:
            load(path)
        return str(caught.value).replace(f"{path.parent}/", "")

    return load_and_fail
