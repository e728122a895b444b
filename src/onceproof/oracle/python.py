"""Oracle ``python``: a user's function gives, from the committed input, the rows that each output must hold.

::

    oracle:
      kind: python
      function: "{here}/expected.py:departures"

The function (``module:function`` or ``{here}/file.py:function``) is called with one dict: input topic -> pyarrow table of
its committed records (``topic``, ``partition``, ``offset``, ``key``, ``value``, ``timestamp_ms``; key and value are bytes), and
static table -> pyarrow table. It returns a dict: output -> its rows, as dicts, a pyarrow table or a DataFrame. Columns are
as in a query of the oracle `sql`, with the same reserved names.

The function runs in a process of its own when the run has ended. If that took no longer than ten seconds, it runs once more in
another process; if the two answers differ, nothing is judged. ``onceproof check`` reads the stored answer and runs nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import duckdb
import pyarrow.parquet as pq
from pydantic import Field

from onceproof.base.user_code import name_problem
from onceproof.faults.contract import SpecProblem
from onceproof.oracle import oracles
from onceproof.oracle.contract import precomputed
from onceproof.oracle.contract.expectation import Expectation
from onceproof.oracle.contract.inputs import Inputs
from onceproof.scenario.model import OracleSpec, Scenario
from onceproof.scenario.templates import fill
from onceproof.values.canonical import literal, quote

# A function that takes no longer than this is called twice.
_CHEAP_S = 10.0


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

    def expect(self, inputs: Inputs) -> Expectation:
        return precomputed.expect(inputs)

    def work_out(self, runner: precomputed.OracleRunner) -> Mapping[str, Any]:
        scratch, run_dir = runner.owner.scratch, runner.directory.path
        static = {path.stem: path for path in sorted(runner.directory.tables.glob("*.parquet"))}
        tables = {**static, **precomputed.committed_input(run_dir, scratch, runner.scenario)}
        outputs = {
            name: [str(precomputed.expected_file(run_dir, name)), spec.identity]
            for name, spec in runner.scenario.asked().items()
        }
        request = scratch / "oracle.json"
        function = fill(self._spec.function, runner.values)
        asked = {"function": function, "tables": {name: str(path) for name, path in tables.items()}, "outputs": outputs}
        request.write_text(json.dumps(asked), encoding="utf-8")
        argv = [sys.executable, "-m", "onceproof.expectation.call", str(request)]
        began = time.monotonic()
        runner.run(f"oracle: function: {self._spec.function} failed", argv)
        self._demand_answer(asked)
        if time.monotonic() - began <= _CHEAP_S:
            self._ask_again(runner, asked)
        return {}

    def _demand_answer(self, asked: Mapping[str, Any]) -> None:
        """Raise `OracleFailed` if the process ended with exit code 0 although the function had not returned (``sys.exit()``)."""
        if any(not Path(file).is_file() for file, _ in asked["outputs"].values()):
            why = "ended its process with exit code 0 before it returned its rows: remove exit() from it"
            raise precomputed.OracleFailed(f"oracle: function: {self._spec.function} {why}")

    def _ask_again(self, runner: precomputed.OracleRunner, asked: dict[str, Any]) -> None:
        """Call the function once more, in another process. Raises `OracleFailed` if the answer differs."""
        scratch = runner.owner.scratch
        again = {name: scratch / f"again-{index}.parquet" for index, name in enumerate(asked["outputs"])}
        outputs = {name: [str(again[name]), identity] for name, (_, identity) in asked["outputs"].items()}
        request = scratch / "oracle-again.json"
        request.write_text(json.dumps({**asked, "outputs": outputs}), encoding="utf-8")
        argv = [sys.executable, "-m", "onceproof.expectation.call", str(request)]
        runner.run(f"oracle: function: {self._spec.function} failed when it was called again", argv)
        self._demand_answer({"outputs": outputs})
        for output, spec in runner.scenario.outputs.items():
            once = precomputed.expected_file(runner.directory.path, output)
            if difference := _difference(once, again[output], spec.ignore):
                raise precomputed.OracleFailed(
                    f"oracle: function: {self._spec.function} is not a function of its input: called again with the same "
                    f"input, it returned other rows for output {output!r}: {difference}. Remove clocks and random "
                    "numbers from it, and sort what comes from a set"
                )


def _difference(once: Path, again: Path, ignore: Sequence[str]) -> str | None:
    """Return the first row that only one of the two files has, without the ignored columns; None if there is none."""
    columns = [sorted(set(pq.read_schema(file).names) - set(ignore)) for file in (once, again)]
    if columns[0] != columns[1]:
        return f"with columns {', '.join(columns[0])} first, then {', '.join(columns[1])}"
    chosen = ", ".join(map(quote, columns[0])) or "1"
    texts = "SELECT to_json(r)::VARCHAR FROM (SELECT {0} FROM read_parquet({1})) r"
    rows = [texts.format(chosen, literal(str(file))) for file in (once, again)]
    with duckdb.connect() as db:
        for side, one, other in (("first", *rows), ("second", *reversed(rows))):
            found = db.execute(f"SELECT * FROM ({one} EXCEPT ALL {other}) ORDER BY 1 LIMIT 1").fetchone()  # noqa: S608
            if found is not None:
                return f"only the {side} call has {found[0]}"
    return None
