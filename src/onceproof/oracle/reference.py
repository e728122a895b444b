"""Oracle ``reference``: the same pipeline without faults, run in batches of several sizes, is what the outputs must hold.

::

    oracle:
      kind: reference
      chunks: [4, 16]

It needs no model of the job, and proves only that faults change nothing: a verdict says "relative to its own fault-free
run". The pipeline is run once more for each number of ``chunks``, on services of its own, when the run has ended; the runs stay
in ``reference/CHUNKS`` of the run directory. If their outputs differ, batch boundaries matter to the pipeline, or a column
differs on each run (then it is proposed for ``ignore``): nobody can say what is right, and the run is inconclusive. With
``anchor``, an oracle `sql` of its own, that one decides then.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from onceproof.base.errors import NotEvaluated
from onceproof.data import open_dataset
from onceproof.faults.contract import SpecProblem
from onceproof.judge.case import stored_expectation as expectation
from onceproof.oracle import oracles
from onceproof.oracle.sql import SqlOracle, SqlSpec
from onceproof.scenario.model import InputSpec, OracleSpec, Scenario

if TYPE_CHECKING:
    from onceproof.history.run_directory import RunDir
    from onceproof.judge.case.case import Case


class ReferenceSpec(OracleSpec):
    kind: Literal["reference"]
    chunks: list[Annotated[int, Field(gt=0)]] = Field(
        default=[4, 16], min_length=2, description="parts that the input is fed in: one fault-free run for each"
    )
    anchor: SqlSpec | None = Field(None, description="an oracle sql, which decides where those runs disagree")


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
            found.append(SpecProblem(("chunks",), "a number of chunks occurs twice", "two that differ, or more"))
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

    def expect(self, case: Case) -> None:
        said = case.run.expectation
        if self._spec.anchor is not None and said is not None and said.anchored:
            chunks = " and ".join(map(str, said.chunks or self._spec.chunks))
            case.basis = f"by the anchor of its oracle, for its fault-free runs in {chunks} chunks disagree"
            SqlOracle(self._spec.anchor).expect(case)
            return
        case.basis = "relative to its own fault-free run"
        expectation.expect(case)

    def work_out(self, bench: expectation.OracleRunner) -> Mapping[str, Any]:
        runs = {chunks: self._run(bench, chunks) for chunks in self._spec.chunks}
        return _agreement(bench, runs, anchored=self._spec.anchor is not None)

    def _run(self, bench: expectation.OracleRunner, chunks: int) -> RunDir:
        bench.timeline.emit("oracle.run", chunks=chunks)
        inputs = [
            item.model_copy(update={"chunks": min(chunks, _rows(item, bench.scenario.seed))})
            for item in bench.scenario.input
        ]
        calm = bench.scenario.model_copy(update={"chaos": [], "input": inputs})
        directory = bench.observe(calm, bench.directory.path / "reference" / str(chunks))
        run = directory.run
        if not run.drained:
            words = f"\n{said}" if run.job is not None and (said := run.job.last_words()) else ""
            why = run.drain_note or "no reason was recorded"
            raise expectation.OracleFailed(
                f"oracle: reference: the fault-free run in {chunks} chunks failed: {why}{words}"
            )
        return directory


def _rows(spec: InputSpec, seed: int) -> int:
    return spec.rows or open_dataset(spec.dataset, spec.options, seed=seed).rows()


def _agreement(bench: expectation.OracleRunner, runs: Mapping[int, RunDir], *, anchored: bool) -> Mapping[str, Any]:
    """Store what all of them show. Raises `OracleFailed` if they differ, unless an anchor decides then."""
    # Late: to judge one needs the oracles.
    from onceproof.judge.case.case import Case
    from onceproof.judge.proposals import compare, input_digest, store_observed

    outputs = bench.scenario.asked()
    with Case.open(bench.directory.path) as case:
        fed = input_digest(case)
    rows: dict[str, list[Path]] = {output: [] for output in outputs}
    for chunks, run in runs.items():
        with Case.open(run.path) as case:
            if input_digest(case) != fed:
                why = "was not fed the same input: the same records at the same offsets"
                raise expectation.OracleFailed(f"oracle: reference: the fault-free run in {chunks} chunks {why}")
            for index, output in enumerate(outputs):
                if output in case.unreadable:
                    why = f"output {output} of the fault-free run in {chunks} chunks cannot be read: {case.unreadable[output]}"
                    raise expectation.OracleFailed(f"oracle: reference: {why}")
                rows[output].append(run.path / f"observed-{index}.parquet")
                try:
                    store_observed(case, output, rows[output][-1])
                except NotEvaluated as gap:
                    raise expectation.OracleFailed(f"oracle: reference: in {chunks} chunks {gap}") from gap
    found = [difference for output, spec in outputs.items() if (difference := compare(output, spec, rows[output]))]
    if found and not anchored:
        raise expectation.OracleFailed(_disagreement(runs, bench.scenario, found))
    if not found:
        for output, files in rows.items():
            shutil.copyfile(files[0], expectation.expected_file(bench.directory.path, output))
    return {"chunks": list(runs), "anchored": bool(found)}


def _disagreement(runs: Mapping[int, RunDir], scenario: Scenario, found: list[Any]) -> str:
    lines = [
        f"oracle: reference: the fault-free runs in {' and '.join(map(str, runs))} chunks disagree, so none of them is right"
    ]
    for difference in found:
        lines += [f"  output {difference.output}: {sentence}" for sentence in difference.sentences()]
        if difference.columns:
            ignore = dict.fromkeys(
                [*scenario.outputs[difference.output].ignore, *(c.column for c in difference.columns)]
            )
            lines.append(
                f"    if that says nothing of the input: outputs: {difference.output}: ignore: [{', '.join(ignore)}]"
            )
    return "\n".join(lines)
