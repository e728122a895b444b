"""How a cell is reported if no run decided it."""

from __future__ import annotations

from dataclasses import replace

from onceproof.judge.findings import Outcome
from onceproof.qualify.cells import Cell, CellState


def as_reported(cell: Cell, shortage: str) -> Cell:
    """Return the cell as it is reported. One that no run decided is what its shared run showed, else not reached.

    ``shortage``: why no further run was made.
    """
    pending = cell.state is CellState.PENDING
    if pending:
        alone = f"{'no further run was made' if cell.runs else 'not tried'}: {shortage}"
    else:
        alone = f"{'alone, it is inconclusive: ' if cell.exercised else 'alone, '}{cell.why}"
    shared = cell.shared
    if shared is None or (cell.exercised and not shared.anomalies):
        why = f"{alone} ({cell.why})" if cell.why else alone
        return replace(cell, state=CellState.NOT_REACHED, why=why) if pending else cell
    exercised = CellState.APPROXIMATE if cell.approximate else CellState.EXERCISED
    return cell.with_found(
        shared,
        state=exercised if shared.hit else CellState.NOT_REACHED,
        verdict=Outcome.VIOLATED if shared.anomalies else Outcome.INCONCLUSIVE,
        why=f"{shared.why}; {alone}",
        runs=(*(run for run in cell.runs if run != shared.run), shared.run),
    )
