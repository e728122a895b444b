"""Oracle ``sql``: a query for each output gives, from the committed input, the rows that the output must hold.

::

    oracle:
      kind: sql
      queries:
        departures: >
          SELECT _partition AS src_partition, _offset AS src_offset, carrier, flight, dep_delay, manufacturer,
                 _topic, _partition, _offset, _key
          FROM flights LEFT JOIN planes USING (tailnum)
          WHERE dep_time IS NOT NULL

The query is DuckDB's SQL and sees ``input`` (topic, partition, offset, key, value, timestamp_ms; committed records
only), a view for each input topic with its JSON fields as typed columns (`onceproof.oracle.contract.columns`), and the static
tables under ``pipeline.prepare.tables``. It must give the columns of the output, except those that the output ignores.

Some names are reserved (`onceproof.oracle.contract.expectation.RESERVED`) and not compared. ``_topic``, ``_partition``, ``_offset``
and ``_key`` name the input record that causes the row. With them, the judge compares losses with recorded progress, duplicates with
replayed batches, and the order with that of the input. A row of a window or join has no single cause: omit them. With one input
topic ``_topic`` may be omitted. If an output's ``source`` names the columns that hold the cause, the query need not name it.

``_to_partition`` is the partition of an output topic in which a row belongs. ``windows`` says when the window of a record closes,
so that records that came too late are left out. The column ``_closes`` says when the window of a row closes, for outputs that get a
row only then (`onceproof.judge.relations.late`)::

      windows:
        flights: {closes: "date_trunc('hour', sched_dep::TIMESTAMPTZ) + INTERVAL 1 HOUR"}

The column types of the query decide how values are compared (`onceproof.values.canonical`): cast a timestamp that the
input holds as a string to TIMESTAMPTZ (a cast to TIMESTAMP drops an offset such as ``+02:00``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from onceproof.base.errors import NotEvaluated
from onceproof.base.registry import suggest
from onceproof.faults.contract import SpecProblem
from onceproof.oracle import oracles
from onceproof.oracle.contract import windows
from onceproof.oracle.contract.expectation import Expectation, ExpectedRows
from onceproof.oracle.contract.inputs import Inputs
from onceproof.oracle.contract.query import select_problem, unordered
from onceproof.oracle.contract.windows import WindowSpec
from onceproof.scenario.model import OracleSpec, Scenario


class SqlSpec(OracleSpec):
    kind: Literal["sql"]
    queries: dict[str, str] = Field(description="output -> SELECT over the input, the topics and the static tables")
    windows: dict[str, WindowSpec] = Field(
        default_factory=dict, description="input topic -> when the window of a record closes, if late ones are dropped"
    )


@oracles.register("sql")
class SqlOracle:
    Spec: ClassVar[type[OracleSpec]] = SqlSpec
    about: ClassVar[str] = "a DuckDB query for each output gives the rows that it must hold"

    def __init__(self, spec: Any) -> None:
        self._spec: SqlSpec = spec

    @classmethod
    def problems(cls, spec: Any, scenario: Scenario) -> list[SpecProblem]:
        found = output_problems("queries", spec.queries, scenario)
        for output, query in spec.queries.items():
            problem = select_problem(query)
            if problem is not None:
                found.append(SpecProblem(("queries", output), *problem))
        return found + windows.problems(spec.windows, scenario)

    def expect(self, inputs: Inputs) -> Expectation:
        rows = {}
        for output, query in self._spec.queries.items():
            text = query.strip().rstrip(";")
            if problem := select_problem(text):
                raise NotEvaluated(f"the oracle's query for output {output!r} cannot be run: {problem[0]}")
            rows[output] = ExpectedRows(text, unordered=tuple(unordered(text)))
        return Expectation(rows)


def output_problems(field: str, given: Mapping[str, object], scenario: Scenario) -> list[SpecProblem]:
    """Return entries for outputs that the scenario does not have, and outputs without an entry."""
    known = list(scenario.asked())
    found = [
        SpecProblem((field, output), f"there is no output {output!r}", suggest(output, known))
        if output not in scenario.outputs
        else SpecProblem(
            (field, output),
            f"output {output!r} must stay empty or holds dead letters: the oracle needs no query for it",
            "remove it here",
        )
        for output in given
        if output not in known
    ]
    for output in known:
        if output not in given:
            hint = f"add {field}: {output}: ..., or remove the output"
            found.append(SpecProblem((field,), f"the oracle says nothing about output {output!r}", hint))
    return found
