"""Oracle ``slice``: the answer of a run's own oracle about the effects that a slice of the run keeps, stored with the slice.

If an effect follows from many input records (a sum, a window, a join), asking the oracle again with the few records of a slice
would make a right effect look wrong. See `onceproof.judge.slices.cut`. A user's scenario cannot have this oracle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from onceproof.base.errors import NotEvaluated
from onceproof.faults.contract import SpecProblem
from onceproof.oracle import oracles
from onceproof.oracle.contract.expectation import Expectation, ExpectedRows
from onceproof.oracle.contract.inputs import Inputs
from onceproof.oracle.contract.precomputed import expected_file
from onceproof.scenario.model import OracleSpec, Scenario


class SliceSpec(OracleSpec):
    kind: Literal["slice"]
    whole: dict[str, bool] = Field(description="output -> whether the stored rows have every column that is compared")
    texts: bool = Field(
        False, description="the stored rows are the texts that another run showed, whatever their types"
    )
    uncommitted: bool = Field(False, description="also stored: the rows that uncommitted input would add")


def uncommitted_file(run_dir: Path, output: str) -> Path:
    """Return the file with the rows that ``output`` would also have to hold if uncommitted input counted."""
    file = expected_file(run_dir, output)
    return file.with_name(f"{file.stem}.uncommitted.parquet")


@oracles.register("slice")
class SliceOracle:
    Spec: ClassVar[type[OracleSpec]] = SliceSpec
    about: ClassVar[str] = "in slices of a run, which onceproof makes: the stored answer of the run's oracle"

    def __init__(self, spec: Any) -> None:
        self._spec: SliceSpec = spec

    @classmethod
    def problems(cls, spec: Any, scenario: Scenario) -> list[SpecProblem]:
        hint = "use sql, identity, python, batch or reference"
        return [SpecProblem(("kind",), "slice is the oracle of stored slices, which are never run", hint)]

    def expect(self, inputs: Inputs) -> Expectation:
        more = inputs.view.uncommitted
        if more and not self._spec.uncommitted:
            raise NotEvaluated("this slice stores only what committed input explains")
        file = uncommitted_file if more else expected_file
        rows = {
            output: ExpectedRows(inputs.stored(file(inputs.history.run_dir, output)), whole)
            for output, whole in self._spec.whole.items()
        }
        return Expectation(rows, stored=True, texts=self._spec.texts)
