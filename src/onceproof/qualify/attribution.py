"""Whose finding is it? From the verdict on one run to what became of each cell that shared it.

A cell's window is the batch that its fault strikes and those up to the next fault's. An effect that stands in no window, or of
which nobody knows the batch, may be any cell's, and one in a window after another that is violated may be what the first left
behind: then the cells concerned are run once more, each alone. So are two cells of which either may have struck a batch that is
wrong. No such run takes back what was found: see `unclaimed`. Of several queries each has windows of its own
(`onceproof.qualify.windows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from onceproof.judge.findings import BatchReport, FaultReport, Outcome, Verdict
from onceproof.qualify.cells import Cell, State
from onceproof.qualify.schedule import Step
from onceproof.qualify.windows import Windows, by_batch

#: Of a fault that did not hit, these two sentences say it: how far it came, and what was seen instead.
_EVIDENCE_KEPT = 4
_DISORDER = (
    "the queries of the run that it shared did not pass its faults in one order, so whose a finding is is not known"
)


def attribute(
    step: Step, verdict: Verdict, instruments: Mapping[int, str], run: str, windows: Windows | None = None
) -> list[Cell]:
    """The cells of ``step`` after its run, in its order.

    ``instruments``: number of the fault -> what saw its point (``watcher`` is approximate). ``run`` names the run directory.
    ``windows``: by default, and where a timeline shows no batch, by the batches of the step: right for a job with one query.
    """
    if len(step.cells) == 1:
        return [_alone(step.cells[0], verdict, instruments.get(0), run)]
    if windows is None or not windows.first:
        windows = by_batch(step, (batch.query for batch in verdict.batches))
    unplaced = _unplaced(windows, verdict)
    return [
        _shared(step, index, verdict, instruments.get(index), run, unplaced, windows)
        for index in range(len(step.cells))
    ]


def unclaimed(found: Iterable[Cell], verdicts: Mapping[str, Verdict]) -> dict[str, dict[str, int]]:
    """Of the runs that violated the claim, what no violated cell that took part in them shows: run -> anomaly -> effects.

    A violation is never tried away: that each cell of a run held when it was alone does not make the run right.
    """
    violated = [cell for cell in found if cell.verdict is Outcome.VIOLATED]
    rest: dict[str, dict[str, int]] = {}
    for run, verdict in verdicts.items():
        if verdict.outcome is Outcome.VIOLATED:
            shown = {anomaly for cell in violated if run in cell.runs for anomaly in cell.anomalies}
            if left := {name: count for name, count in verdict.anomalies().items() if name not in shown}:
                rest[run] = left
    return rest


def _alone(cell: Cell, verdict: Verdict, instrument: str | None, run: str) -> Cell:
    """Everything found in a run of its own is the cell's."""
    fault = verdict.faults[0] if verdict.faults else None
    ran = replace(cell, runs=(*cell.runs, run), evidence=_evidence(fault), alone=True)
    if fault is not None and fault.hit:
        why = None if verdict.outcome is Outcome.HELD else _first_line(verdict)
        return replace(
            ran,
            state=_state(cell, instrument),
            verdict=verdict.outcome,
            anomalies=dict(verdict.anomalies()),
            outputs=_outputs(verdict),
            why=why,
        )
    violated = verdict.outcome is Outcome.VIOLATED
    return replace(
        ran,
        state=State.NOT_REACHED,
        why=_missed(fault) or _first_line(verdict),
        # What was found was found, whether or not the fault can be proven to have hit.
        verdict=Outcome.VIOLATED if violated else None,
        anomalies=dict(verdict.anomalies()) if violated else {},
        outputs=_outputs(verdict) if violated else (),
    )


def _shared(
    step: Step,
    index: int,
    verdict: Verdict,
    instrument: str | None,
    run: str,
    unplaced: str | None,
    windows: Windows,
) -> Cell:
    cell = step.cells[index]
    fault = verdict.faults[index] if index < len(verdict.faults) else None
    ran = replace(cell, runs=(*cell.runs, run), evidence=_evidence(fault))
    if fault is None or not fault.hit:
        return replace(ran, alone=True, why=_missed(fault))
    window = [batch for batch in verdict.batches if windows.possible(batch.query, batch.batch, index)]
    sure = {_name(batch) for batch in window if windows.sure(batch.query, batch.batch, index)}
    anomalies, outputs = _found(verdict, sure)
    if anomalies and not windows.ordered:
        return replace(ran, alone=True, why=_DISORDER)
    if anomalies and (damaged := _damaged(windows, index, verdict)) is not None:
        why = f"batch {damaged} of the run that it shared was violated before its fault, and this may be what is left of that"
        return replace(ran, alone=True, why=why)
    doubt = next((name for name in map(_name, window) if name not in sure and _found(verdict, {name})[0]), None)
    known = doubt is None and unplaced is None and bool(window)
    right = known and all(batch.verdict is Outcome.HELD for batch in window)
    if anomalies:
        done = Outcome.VIOLATED
    elif right or verdict.outcome is Outcome.HELD:  # of a run in which nothing is wrong nothing is to be told apart
        done = Outcome.HELD
    else:
        told = f"batch {doubt} of the run that it shared is violated, and either of two faults may have struck it"
        silent = "the run that it shared does not tell whether its batches are right"
        return replace(ran, alone=True, why=unplaced or (told if doubt else silent))
    return replace(ran, state=_state(cell, instrument), verdict=done, anomalies=anomalies, outputs=outputs, why=None)


def _damaged(windows: Windows, index: int, verdict: Verdict) -> str | None:
    """The first batch before the window of that number with an effect that violates the claim."""
    names = {name for f in verdict.findings if f.violates for name, effects in f.batches.items() if effects}
    before = sorted((number, query) for query, number in map(_split, names) if windows.before(query, number, index))
    if not before:
        return None
    number, query = before[0]
    return f"{number} of query {query}" if len(windows.first) > 1 else str(number)


def _name(batch: BatchReport) -> str:
    return f"{batch.query}/{batch.batch}"


def _split(batch: str) -> tuple[str, int]:
    """Of ``query/batch``."""
    query, _, number = batch.rpartition("/")
    return query, int(number)


def _found(verdict: Verdict, window: set[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """What violates the claim in these batches: anomaly -> effects, and the outputs that show it."""
    anomalies: dict[str, int] = {}
    outputs = set()
    for finding in verdict.findings:
        effects = sum(count for batch, count in finding.batches.items() if batch in window)
        if effects and finding.violates:
            anomalies[finding.anomaly] = anomalies.get(finding.anomaly, 0) + effects
            outputs.add(finding.output)
    return anomalies, tuple(sorted(outputs))


def _outputs(verdict: Verdict) -> tuple[str, ...]:
    return tuple(sorted({finding.output for finding in verdict.findings if finding.violates}))


def _unplaced(windows: Windows, verdict: Verdict) -> str | None:
    """What was found of which no window holds all; None where every effect is some cell's."""
    for finding in verdict.findings:
        if not finding.violates:
            continue
        if (lost := finding.total - sum(finding.batches.values())) > 0:
            return f"{finding.anomaly} in {finding.output}: of {lost} effects nobody knows the batch"
        if not windows.ordered:
            return _DISORDER
        early = [name for name in finding.batches if windows.before(*_split(name), 0)]
        if early:
            return f"{finding.anomaly} in {finding.output}: in batch {early[0]}, before the first fault"
    return None


def _state(cell: Cell, instrument: str | None) -> State:
    return State.APPROXIMATE if cell.approximate or instrument == "watcher" else State.EXERCISED


def _evidence(fault: FaultReport | None) -> tuple[str, ...]:
    return () if fault is None else fault.evidence[:_EVIDENCE_KEPT]


def _missed(fault: FaultReport | None) -> str | None:
    if fault is None or fault.hit:
        return None
    how = "it fired and did not hit" if fault.fired else "it never fired"
    return f"{how}: {'; '.join(fault.evidence[:_EVIDENCE_KEPT])}" if fault.evidence else how


def _first_line(verdict: Verdict) -> str:
    return verdict.reasons[0].splitlines()[0] if verdict.reasons else verdict.outcome.value
