"""Oracle ``reference``: the outputs must hold what the same pipeline writes without faults, in batches of several sizes.

::

    oracle:
      kind: reference
      chunks: [4, 16]

This oracle needs no model of the job. It proves only that faults change nothing, so the verdict says "relative to its own
fault-free run". When the run has ended, the pipeline runs once more for each number of ``chunks``, on services of its own; these
runs are kept in ``reference/CHUNKS`` of the run directory. If their outputs differ, either batch boundaries matter to the pipeline,
or a column differs on each run (it is then proposed for ``ignore``). It is then not known which run is right, and the verdict is
inconclusive, unless ``anchor``, an oracle `sql` of its own, decides.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from onceproof.base.errors import NotEvaluated
from onceproof.data import rows_of
from onceproof.faults.contract import SpecProblem
from onceproof.oracle import oracles
from onceproof.oracle.contract import precomputed
from onceproof.oracle.contract.differences import Differences, compare, input_digest
from onceproof.oracle.contract.expectation import Expectation
from onceproof.oracle.contract.inputs import Inputs
from onceproof.oracle.sql import SqlOracle, SqlSpec
from onceproof.scenario.model import OracleSpec, Scenario

if TYPE_CHECKING:
    from onceproof.history.run_directory import RunDir


class ReferenceSpec(OracleSpec):
    kind: Literal["reference"]
    chunks: list[Annotated[int, Field(gt=0)]] = Field(
        default=[4, 16],
        min_length=2,
        description="numbers of chunks that the input is fed in: one fault-free run for each",
    )
    anchor: SqlSpec | None = Field(None, description="an oracle sql, which decides if those runs disagree")


@oracles.register("reference")
class ReferenceOracle:
    Spec: ClassVar[type[OracleSpec]] = ReferenceSpec
    about: ClassVar[str] = "the same pipeline without faults, at several batch sizes: faults must change nothing"

    def __init__(self, spec: Any) -> None:
        self._spec: ReferenceSpec = spec

    @classmethod
    def problems(cls, spec: Any, scenario: Scenario) -> list[SpecProblem]:
        found = []
        if len(set(spec.chunks)) < len(spec.chunks):
            found.append(
                SpecProblem(("chunks",), "a number of chunks occurs twice", "give two or more different numbers")
            )
        for output, model in scenario.asked().items():
            if model.kind == "changelog":
                why = f"output {output!r} is a changelog: which states it shows depends on the batches, not only on the input"
                found.append(SpecProblem((), why, "declare it as upsert, or use oracle sql or python"))
        if spec.anchor is not None:
            anchored = SqlOracle.problems(spec.anchor, scenario)
            found += [SpecProblem(("anchor", *p.loc), p.message, p.hint) for p in anchored]
        return found

    def files(self) -> Iterable[tuple[tuple[str | int, ...], str]]:
        return []

    def expect(self, inputs: Inputs) -> Expectation:
        stored = inputs.run.expectation
        if self._spec.anchor is not None and stored is not None and stored.anchored:
            chunks = " and ".join(map(str, stored.chunks or self._spec.chunks))
            basis = f"by the anchor of its oracle, because its fault-free runs in {chunks} chunks disagree"
            return replace(SqlOracle(self._spec.anchor).expect(inputs), basis=basis, texts=True)
        return replace(precomputed.expect(inputs), basis="relative to its own fault-free run", texts=True)

    def work_out(self, runner: precomputed.OracleRunner) -> Mapping[str, Any]:
        runs = {chunks: self._run(runner, chunks) for chunks in self._spec.chunks}
        return _store_agreed_rows(runner, runs, anchored=self._spec.anchor is not None)

    def _run(self, runner: precomputed.OracleRunner, chunks: int) -> RunDir:
        runner.timeline.emit("oracle.run", chunks=chunks)
        inputs = [
            item.model_copy(update={"chunks": min(chunks, rows_of(item, runner.scenario.seed))})
            for item in runner.scenario.input
        ]
        calm = runner.scenario.model_copy(update={"chaos": [], "input": inputs})
        directory = runner.observe(calm, runner.directory.path / "reference" / str(chunks))
        run = directory.run
        if not run.drained:
            words = f"\n{last}" if run.job is not None and (last := run.job.failure_text()) else ""
            why = run.drain_note or "no reason was recorded"
            raise precomputed.OracleFailed(
                f"oracle: reference: the fault-free run in {chunks} chunks failed: {why}{words}"
            )
        return directory


def _store_agreed_rows(
    runner: precomputed.OracleRunner, runs: Mapping[int, RunDir], *, anchored: bool
) -> Mapping[str, Any]:
    """Store what all runs show. Raises `OracleFailed` if they differ and there is no anchor to decide."""
    outputs = runner.scenario.asked()
    fed = input_digest(runner.directory.path)
    rows = {
        output: [run.path / f"observed-{index}.parquet" for run in runs.values()]
        for index, output in enumerate(outputs)
    }
    for at, (chunks, run) in enumerate(runs.items()):
        if input_digest(run.path) != fed:
            why = "was not fed the same input: the same records at the same offsets"
            raise precomputed.OracleFailed(f"oracle: reference: the fault-free run in {chunks} chunks {why}")
        try:
            runner.store_rows(run.path, {output: files[at] for output, files in rows.items()})
        except NotEvaluated as gap:
            raise precomputed.OracleFailed(f"oracle: reference: in {chunks} chunks {gap}") from gap
    found = [difference for output, spec in outputs.items() if (difference := compare(output, spec, rows[output]))]
    if found and not anchored:
        raise precomputed.OracleFailed(_disagreement(runs, runner.scenario, found))
    if not found:
        for output, files in rows.items():
            shutil.copyfile(files[0], precomputed.expected_file(runner.directory.path, output))
    return {"chunks": list(runs), "anchored": bool(found)}


def _disagreement(runs: Mapping[int, RunDir], scenario: Scenario, found: list[Differences]) -> str:
    lines = [
        f"oracle: reference: the fault-free runs in {' and '.join(map(str, runs))} chunks disagree, so it is not known which is right"
    ]
    for difference in found:
        lines += [f"  output {difference.output}: {sentence}" for sentence in difference.sentences()]
        if difference.columns:
            ignore = difference.to_ignore(scenario.outputs[difference.output])
            lines.append(
                f"    if these columns do not depend on the input, set outputs: {difference.output}: ignore: [{', '.join(ignore)}]"
            )
    return "\n".join(lines)
