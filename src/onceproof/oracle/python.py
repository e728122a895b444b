"""Oracle ``python``: a function of the scenario's author gives, from the committed input, the rows that each output must hold.

::

    oracle:
      kind: python
      function: "{here}/expected.py:departures"

The function (``module:function`` or ``{here}/file.py:function``) is called with one dict: input topic -> pyarrow table of
its committed records (``topic``, ``partition``, ``offset``, ``key``, ``value``, ``timestamp_ms``; key and value are bytes), and
static table -> pyarrow table. It returns a dict: output -> its rows, as dicts, a pyarrow table or a DataFrame. Columns are
as in a query of oracle `sql`, with the same reserved names.

It runs once, in a process of its own, when the run has ended. ``onceproof check`` reads what it said and runs nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from onceproof import expectation
from onceproof.faults import SpecProblem
from onceproof.oracle import oracles
from onceproof.scenario.model import OracleSpec, Scenario
from onceproof.scenario.templates import fill
from onceproof.user_code import name_problem

if TYPE_CHECKING:
    from onceproof.judge.case import Case


class PythonSpec(OracleSpec):
    kind: Literal["python"]
    function: str = Field(description="module:function or {here}/file.py:function")


@oracles.register("python")
class PythonOracle:
    Spec: ClassVar[type[OracleSpec]] = PythonSpec
    about: ClassVar[str] = "a Python function gives, from the committed input, the rows that each output must hold"

    def __init__(self, spec: Any) -> None:
        self._spec: PythonSpec = spec

    @classmethod
    def problems(cls, spec: Any, scenario: Scenario) -> list[SpecProblem]:
        problem = name_problem(spec.function)
        return [] if problem is None else [SpecProblem(("function",), problem)]

    def files(self) -> Iterable[tuple[tuple[str | int, ...], str]]:
        where = self._spec.function.rpartition(":")[0]
        return [(("function",), where)] if where.endswith(".py") else []

    def expect(self, case: Case) -> None:
        expectation.expect(case)

    def work_out(self, bench: expectation.Workbench) -> Mapping[str, Any]:
        scratch, run_dir = bench.owner.scratch, bench.directory.path
        static = {path.stem: path for path in sorted(bench.directory.tables.glob("*.parquet"))}
        topics = dict.fromkeys(spec.topic for spec in bench.scenario.input)
        tables = {**static, **expectation.committed_input(run_dir, scratch, topics)}
        outputs = {
            name: [str(expectation.expected_file(run_dir, name)), spec.identity]
            for name, spec in bench.scenario.asked().items()
        }
        request = scratch / "oracle.json"
        function = fill(self._spec.function, bench.values)
        asked = {"function": function, "tables": {name: str(path) for name, path in tables.items()}, "outputs": outputs}
        request.write_text(json.dumps(asked), encoding="utf-8")
        argv = [sys.executable, "-m", "onceproof.oracle_call", str(request)]
        bench.run(f"oracle: function: {self._spec.function} failed", argv)
        return {}
