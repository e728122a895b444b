"""What a qualification takes from a run: its verdict, which instrument saw the point of each fault, and what a failed run leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from onceproof.base.errors import HistoryError
from onceproof.base.timeline import Event
from onceproof.judge.findings import VERDICT_FILE, Finding, Outcome, Verdict, Witness
from onceproof.qualify.cells import Cell, CellState
from onceproof.qualify.directory import Directory, QualificationProgress


def fired_by(events: Iterable[Event]) -> Mapping[int, str]:
    """Return for each fault that fired: its number -> the instrument that saw its point."""
    return {int(event.data["index"]): str(event.data["instrument"]) for event in events if event.kind == "fault.fired"}


def read_verdict(run_dir: Path) -> Verdict:
    """Return the stored verdict of a run. Raises `HistoryError`."""
    try:
        return Verdict.from_json(run_dir / VERDICT_FILE)
    except (OSError, ValueError) as damaged:
        message = f"{run_dir / VERDICT_FILE} cannot be read: {damaged}"
        again = f"judge the run again: onceproof check {run_dir}"
        gone = "the qualification needs this run: put its directory back, or begin a new qualification"
        raise HistoryError(message, hint=again if run_dir.is_dir() else gone) from None


def violated_runs(directory: Directory, progress: QualificationProgress) -> list[str]:
    """Return the runs that were judged violated, but ended before the state had them: their cells are run again, and may hold."""
    known = {str(progress.first), *progress.decided, *(run for cell in progress.cells for run in cell.runs)}
    found = []
    for run in sorted(directory.runs.glob("*")):
        name = str(run.relative_to(directory.path))
        with suppress(OSError, ValueError, RecursionError):
            if (
                name in known
                or run.is_symlink()
                or Verdict.from_json(run / VERDICT_FILE).outcome is not Outcome.VIOLATED
            ):
                continue
            found.append(name)
    return found


def with_witness_per_batch(verdict: Verdict, run_dir: Path) -> Verdict:
    """Return the verdict with a witness for each batch that a finding names, if the file of all its witnesses has one.

    A verdict holds only the first witnesses of a finding. If they were all from one batch, a cell that struck another batch would
    show none.
    """
    return replace(verdict, findings=tuple(_with_more_witnesses(finding, run_dir) for finding in verdict.findings))


def _with_more_witnesses(finding: Finding, run_dir: Path) -> Finding:
    wanted = {int(name.rpartition("/")[2]) for name in finding.batches}
    wanted -= {witness.batch for witness in finding.witnesses if witness.batch is not None}
    more = []
    for witness in _all_witnesses(finding, run_dir):
        if not wanted:
            break
        if witness.batch in wanted:
            wanted.remove(witness.batch)
            more.append(witness)
    return replace(finding, witnesses=(*finding.witnesses, *more))


def _all_witnesses(finding: Finding, run_dir: Path) -> Iterator[Witness]:
    if finding.witness_file is None:
        return
    with (run_dir / finding.witness_file).open(encoding="utf-8") as lines:
        for line in lines:
            yield TypeAdapter(Witness).validate_json(line)


def after_cut_off(before: Cell, after: Cell) -> Cell:
    """Return the cell after a run that the budget cut off. What that run did not show, another run may show.

    Only a violation remains: a cell that held might not have, had the run gone on.
    """
    in_shared = after.state is CellState.PENDING and after.shared is not None and after.shared.anomalies
    if after.verdict is Outcome.VIOLATED or in_shared:
        return after
    waiting = before.state is CellState.PENDING
    why = "the budget ended its run before it had drained" if waiting else before.why
    return replace(before, why=why, runs=after.runs)


def decides_about(before: Cell, after: Cell) -> bool:
    """Whether a run decided something about the cell. A repetition that shows nothing does not: the cell is then as it was."""
    if before.state is CellState.PENDING:
        return after.exercised or after.verdict is not None
    return after.hits != before.hits


def after_failure(cell: Cell, why: str, *, shared: bool) -> Cell:
    """Return the cell after a run that the harness could not finish. A cell that is decided stays so; the try is counted."""
    if cell.state is not CellState.PENDING:
        return replace(cell, failed=cell.failed + 1)
    return replace(cell, state=cell.state if shared else CellState.NOT_REACHED, alone=True, why=why)
