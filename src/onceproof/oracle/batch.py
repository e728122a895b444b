"""Oracle ``batch``: the pipeline's own transformation, run once as a batch over the committed input.

::

    oracle:
      kind: batch
      command:
        - "{python}"
        - "{here}/jobs/delays.py"
        - --batch={input.flights}
        - --planes={table.planes}
        - --to={expected.delays}

``{input.TOPIC}`` is a Parquet file of the topic's committed records, with the columns of Spark's Kafka source except for the
time: ``topic``, ``partition``, ``offset``, ``key``, ``value``, ``timestamp_ms``. ``{expected.OUTPUT}`` is where the command writes
the rows that the output must hold, as a Parquet file or a folder of files, as Spark writes it. Columns are as in a query of the
oracle `sql`, with the same reserved names.

This oracle proves that streaming and faults change nothing. It cannot show a mistake in the transformation that both share. The
command runs in the job's environment when the run has ended; ``onceproof check`` reads what it wrote and runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import quote as percent_encoded

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from onceproof.base.registry import suggest
from onceproof.faults.contract import SpecProblem
from onceproof.history.writer import PARQUET
from onceproof.oracle import oracles
from onceproof.oracle.contract import precomputed
from onceproof.oracle.contract.expectation import Expectation
from onceproof.oracle.contract.inputs import Inputs
from onceproof.scenario.model import OracleSpec, Scenario
from onceproof.scenario.templates import fill, misspelt, used
from onceproof.values.column_names import of_one_name


class BatchSpec(OracleSpec):
    kind: Literal["batch"]
    command: list[str] = Field(
        min_length=1, description="any command; it reads {input.TOPIC}, writes {expected.OUTPUT}"
    )


@oracles.register("batch")
class BatchOracle:
    Spec: ClassVar[type[OracleSpec]] = BatchSpec
    about: ClassVar[str] = "the pipeline's own transformation, run once as a batch over the committed input"

    def __init__(self, spec: Any) -> None:
        self._spec: BatchSpec = spec

    @classmethod
    def problems(cls, spec: Any, scenario: Scenario) -> list[SpecProblem]:
        known = {
            "input": [item.topic for item in scenario.input],
            "expected": list(scenario.asked()),
            "topic": scenario.topics(),
            "table": scenario.pipeline.prepare.tables,
        }
        found, written = [], set()
        for index, word in enumerate(spec.command):
            for wrong, near in misspelt(word):
                found.append(SpecProblem(("command", index), f"template {{{wrong}}}: there is none of that name", near))
            for template in sorted(used(word)):
                kind, _, name = template.partition(".")
                if kind in ("kafka", "postgres", "checkpoint"):
                    why = f"template {{{template}}}: the services of the run are gone when the batch runs"
                    found.append(SpecProblem(("command", index), why, "read {input.TOPIC} instead"))
                elif kind in known and name not in known[kind]:
                    why = f"template {{{template}}}: no {kind} {name!r}"
                    found.append(SpecProblem(("command", index), why, suggest(name, known[kind])))
                elif kind == "expected":
                    written.add(name)
        for output in scenario.asked():
            if output not in written:
                hint = f"pass {{expected.{output}}} to it, the place where it must write the rows of that output"
                found.append(SpecProblem(("command",), f"the command writes nothing for output {output!r}", hint))
        return found

    def files(self) -> Iterable[tuple[tuple[str | int, ...], str]]:
        return [(("command", index), word) for index, word in enumerate(self._spec.command) if word.endswith(".py")]

    def expect(self, inputs: Inputs) -> Expectation:
        return precomputed.expect(inputs)

    def work_out(self, runner: precomputed.OracleRunner) -> Mapping[str, Any]:
        scratch = runner.owner.scratch
        inputs = precomputed.committed_input(runner.directory.path, scratch, runner.scenario)
        written = {
            name: scratch / f"expected-{percent_encoded(name, safe='')}.parquet" for name in runner.scenario.asked()
        }
        values = {
            **runner.values,
            **{f"input.{topic}": str(path) for topic, path in inputs.items()},
            **{f"expected.{name}": str(path) for name, path in written.items()},
        }
        runner.run("oracle: command failed", [fill(word, values) for word in self._spec.command])
        for name, path in written.items():
            _copy_as_one_file(path, precomputed.expected_file(runner.directory.path, name), f"{{expected.{name}}}")
        return {}


def _copy_as_one_file(written: Path, target: Path, template: str) -> None:
    """Copy what the command wrote, a file or a folder of files, into one file, row group by row group."""
    if not written.exists():
        raise precomputed.OracleFailed(f"oracle: command: it ended with exit code 0 and wrote nothing to {template}")
    import pyarrow.dataset as ds  # it imports pandas, so that every judgement would begin half a second later

    try:
        rows = ds.dataset(written, format="parquet")  # ignores Spark's _SUCCESS and .crc files
        if twice := of_one_name(rows.schema.names):
            why = f"what it wrote to {template} has several columns of one name, in upper or lower case: {', '.join(twice)}"
            raise precomputed.OracleFailed(f"oracle: command: {why}")
        with pq.ParquetWriter(target, rows.schema, **PARQUET) as writer:
            for batch in rows.to_batches():
                writer.write_batch(batch)
    except (pa.ArrowException, OSError) as damaged:
        target.unlink(missing_ok=True)
        why = f"oracle: command: what it wrote to {template} is not readable as Parquet: {damaged}"
        raise precomputed.OracleFailed(why) from damaged
