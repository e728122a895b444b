"""Oracle ``identity``: each committed input record that passes a filter has exactly one effect, named by its identity.

::

    oracle:
      kind: identity
      columns:
        departures: {src_partition: _partition, src_offset: _offset}
      where:
        departures: dep_time IS NOT NULL

``columns`` gives for each output each of its identity columns, as a DuckDB expression over the decoded view of the input
topic (`onceproof.oracle.contract.columns`). This oracle needs no model of the job. It does not cover the other columns: they are not
compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from onceproof.base.errors import NotEvaluated
from onceproof.base.registry import suggest
from onceproof.faults.contract import SpecProblem
from onceproof.oracle import oracles
from onceproof.oracle.contract.expectation import Expectation, ExpectedRows
from onceproof.oracle.contract.inputs import Inputs
from onceproof.oracle.contract.query import select_problem, unordered
from onceproof.oracle.sql import output_problems
from onceproof.scenario.model import OracleSpec, Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.values.canonical import quote


class IdentitySpec(OracleSpec):
    kind: Literal["identity"]
    columns: dict[str, dict[str, str]] = Field(
        description="output -> its identity columns, each as an SQL expression over the input topic's fields"
    )
    where: dict[str, str] = Field(
        default_factory=dict, description="output -> SQL condition; records that fail it are not expected there"
    )
    topic: str | None = Field(None, description="the input topic (needed only where there are several)")


@oracles.register("identity")
class IdentityOracle:
    Spec: ClassVar[type[OracleSpec]] = IdentitySpec
    about: ClassVar[str] = (
        "each committed input record that passes a filter gives exactly one row or record, of its identity"
    )

    def __init__(self, spec: Any) -> None:
        self._spec: IdentitySpec = spec

    @classmethod
    def problems(cls, spec: Any, scenario: Scenario) -> list[SpecProblem]:
        found = output_problems("columns", spec.columns, scenario)
        topics = sorted({item.topic for item in scenario.input})
        if spec.topic is not None and spec.topic not in topics:
            found.append(
                SpecProblem(("topic",), f"there is no input topic {spec.topic!r}", suggest(spec.topic, topics))
            )
        if spec.topic is None and len(topics) > 1:
            found.append(
                SpecProblem((), f"which input topic? There are {', '.join(topics)}", "add topic: to the oracle")
            )
        for output in spec.where.keys() - scenario.outputs.keys():
            hint = suggest(output, list(scenario.outputs))
            found.append(SpecProblem(("where", output), f"there is no output {output!r}", hint))
        for output in spec.columns.keys() & scenario.asked().keys():
            found += _column_problems(spec, output, scenario.outputs[output].identity)
        return found

    def expect(self, inputs: Inputs) -> Expectation:
        topic = self._spec.topic or inputs.scenario.known_as(inputs.scenario.input[0].topic)
        rows = {}
        for output in self._spec.columns:
            for problem in _sql_problems(self._spec, output):
                where = ": ".join(map(str, problem.loc))
                raise NotEvaluated(f"the oracle's expression under {where} cannot be run: {problem.message}")
            parts = [p for _, text, before in expressions(self._spec, output) for p in unordered(text, before, "\n)")]
            query = _query(self._spec, output, topic, inputs.scenario.outputs[output])
            rows[output] = ExpectedRows(query, whole=False, unordered=tuple(parts))
        return Expectation(rows)


def _column_problems(spec: IdentitySpec, output: str, identity: list[str]) -> list[SpecProblem]:
    given = spec.columns[output]
    found = [
        SpecProblem(
            ("columns", output, name),
            f"{name!r} is not part of the identity of output {output!r}",
            suggest(name, identity),
        )
        for name in given
        if name not in identity
    ]
    if missing := [name for name in identity if name not in given]:
        hint = f"add {missing[0]}: <expression over the input's fields>"
        found.append(
            SpecProblem(("columns", output), f"identity column {missing[0]!r} of output {output!r} is missing", hint)
        )
    return found + _sql_problems(spec, output)


def _sql_problems(spec: IdentitySpec, output: str) -> list[SpecProblem]:
    return [
        SpecProblem(loc, *problem)
        for loc, text, before in expressions(spec, output)
        if (problem := select_problem(text, before, "\n)"))
    ]


def expressions(spec: IdentitySpec, output: str) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
    """Yield each SQL expression about an output: its place below ``oracle``, its text, and the text before it that, with ``)`` after
    it, makes it a SELECT.
    """
    for name, expression in spec.columns[output].items():
        yield ("columns", output, name), expression, "SELECT (\n"
    if output in spec.where:
        yield ("where", output), spec.where[output], "SELECT 1 WHERE (\n"


def _query(spec: IdentitySpec, output: str, topic: str, model: OutputSpec) -> str:
    columns = ", ".join(f"(\n{expression}\n) AS {quote(name)}" for name, expression in spec.columns[output].items())
    where = f" WHERE (\n{spec.where[output]}\n)" if output in spec.where else ""
    headers = ", _headers" if model.headers == "compare" else ""
    return f"SELECT {columns}, _topic, _partition, _offset, _key{headers} FROM {quote(topic)}{where}"  # noqa: S608
