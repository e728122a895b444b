"""Oracle ``first-per-key``: what is left of a topic after ``dropDuplicates``."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from onceproof.base.registry import suggest
from onceproof.faults.contract import SpecProblem
from onceproof.oracle import oracles
from onceproof.oracle.contract.expectation import Expectation, ExpectedRows
from onceproof.oracle.contract.inputs import Inputs
from onceproof.scenario.model import OracleSpec, Scenario
from onceproof.values.canonical import quote


class FirstPerKeySpec(OracleSpec):
    kind: Literal["first-per-key"]
    topic: str = Field(description="the input topic; all records of a key must be in one partition")


@oracles.register("first-per-key")
class FirstPerKey:
    Spec: ClassVar[type[OracleSpec]] = FirstPerKeySpec
    about: ClassVar[str] = "each output holds the first record of each key of one input topic"

    def __init__(self, spec: Any) -> None:
        self._spec: FirstPerKeySpec = spec

    @classmethod
    def problems(cls, spec: Any, scenario: Scenario) -> list[SpecProblem]:
        topics = sorted({item.topic for item in scenario.input})
        if spec.topic in topics:
            return []
        return [SpecProblem(("topic",), f"there is no input topic {spec.topic!r}", suggest(spec.topic, topics))]

    def expect(self, inputs: Inputs) -> Expectation:
        query = f"""
            SELECT * EXCLUDE (_timestamp_ms, _value) FROM {quote(self._spec.topic)}
            QUALIFY row_number() OVER (PARTITION BY _key ORDER BY _partition, _offset) = 1"""
        return Expectation({output: ExpectedRows(query) for output in inputs.scenario.asked()})
