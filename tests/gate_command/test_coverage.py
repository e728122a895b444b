"""What counts as less coverage than in the baseline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from onceproof.gate.baseline import Coverage
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find

from .test_gate import verdict


def test_another_oracle_is_less_coverage() -> None:
    scenario = load(find("naive-append"))
    (output, *_) = scenario.oracle.model_dump()["queries"]
    easier = {"kind": "sql", "queries": {output: "SELECT * FROM input WHERE false"}}
    changed = scenario.model_copy(update={"oracle": type(scenario.oracle).model_validate(easier)})
    before, after = Coverage.of(verdict("good"), scenario), Coverage.of(verdict("good"), changed)
    assert before.oracle is not None and before.oracle.startswith("sql ")
    assert list(Coverage.of(verdict("good"), load(find("naive-append"))).losses(before)) == []
    assert list(after.losses(before)) == [f"another oracle: {after.oracle} instead of {before.oracle}"]


def test_a_side_output_that_is_no_longer_there_is_less_coverage() -> None:
    """The oracle expects no rows in it, so no count shows that it is gone."""
    scenario = load(find("naive-append"))
    (spec,) = scenario.outputs.values()
    empty = type(spec).model_validate({"table": "never", "expected": "empty"})
    before = Coverage.of(verdict("one"), scenario.model_copy(update={"outputs": {**scenario.outputs, "never": empty}}))
    after = Coverage.of(verdict("one"), scenario)
    assert list(after.losses(before)) == ["no longer judged: output never"]
    assert list(before.losses(after)) == []


def test_how_much_a_job_merges_or_rejects_is_not_coverage() -> None:
    """A correct job merges other states of a changelog, or rejects other rows, on each run."""
    scenario = load(find("naive-append"))
    (name,) = scenario.outputs
    errors = OutputSpec.model_validate({"table": "errors", "dead_letter_of": name, "identity": ["id"]})
    scenario = scenario.model_copy(update={"outputs": {**scenario.outputs, "errors": errors}})

    def coverage(rejected: int, of: int = 10) -> Coverage:
        counts = {f"expected.{name}": of - rejected, "expected.errors": rejected}
        counts |= {f"oracle.{name}": of} if rejected else {}
        return Coverage.of(verdict("one", counts={"input": 10, **counts}), scenario)

    runs = [coverage(rejected) for rejected in (0, 1, 4)]
    assert [list(now.losses(before)) for now in runs for before in runs] == [[]] * 9
    assert list(coverage(4, of=9).losses(runs[0])) == [f"9 rows expected in {name} instead of 10"]
    earlier = runs[2].model_copy(update={"outputs": {name: 6, "errors": 4}})  # as onceproof wrote it before
    assert list(runs[1].losses(earlier)) == []


@pytest.mark.parametrize(
    "looser",
    [
        {"compare": ["id"]},
        {"identity": ["id"]},
        {"table": "elsewhere"},
        {"table": None, "topic": "departures"},
        {"query": "other"},
        {"decode": "debezium"},
    ],
)
def test_an_output_that_is_elsewhere_or_compared_in_another_way_is_less_coverage(looser: dict[str, Any]) -> None:
    scenario = load(find("naive-append"))
    before = Coverage.of(verdict("one"), scenario)
    outputs = {name: spec.model_copy(update=looser) for name, spec in scenario.outputs.items()}
    after = Coverage.of(verdict("one"), scenario.model_copy(update={"outputs": outputs}))
    assert list(after.losses(before)) == [f"compared in another way: output {name}" for name in sorted(outputs)]
    assert list(before.losses(before)) == []


def test_a_fault_in_another_query_is_another_fault() -> None:
    scenario = load(find("naive-append"))
    found = verdict("one")
    moved = replace(found, faults=tuple(replace(fault, query="r") for fault in found.faults))
    before, after = Coverage.of(found, scenario), Coverage.of(moved, scenario)
    assert list(after.losses(before)) == ["no longer hit: crash driver, batch 0 @ after-sink-commit of q"]
    assert list(before.losses(before)) == []
