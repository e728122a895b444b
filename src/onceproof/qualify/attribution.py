"""Assigns the findings of one run to the cells that shared it.

A cell's window starts at the batch that its fault strikes and ends before the batch of the next fault. Each query has windows
of its own (`onceproof.qualify.windows`). The cells concerned are run again, each alone,

- if an effect lies in no window, or its batch is unknown: it may belong to any cell;
- if an effect lies in a window after a violated one: it may be a consequence of the earlier fault, unless it shows its own cause
  (`onceproof.judge.checker.Checker.own_batch`), as the copies of a replayed batch do;
- if either of two faults may have struck a batch that is wrong.

Until such a run decides, a cell keeps what the shared run showed (`cells.Shared`): a fault that hit and left wrong rows is never
reported as not reached. A run of a single cell never takes back what a shared run found: see `unclaimed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from onceproof.base.words import times
from onceproof.judge.checker import Checker, checkers
from onceproof.judge.findings import BatchReport, FaultReport, Finding, Outcome, Verdict, Witness
from onceproof.qualify.cells import Cell, CellState, Found, Shared
from onceproof.qualify.schedule import RunStep
from onceproof.qualify.windows import Windows, by_batch

_DISORDER = "the queries of the shared run did not pass its faults in one order, so its findings cannot be assigned"


@dataclass(frozen=True)
class _Unplaced:
    """Rows of a shared run that may belong to any of its cells."""

    why: str
    found: Found


def attribute(
    step: RunStep, verdict: Verdict, instruments: Mapping[int, str], run: str, windows: Windows | None = None
) -> list[Cell]:
    """Return the cells of ``step`` as its run leaves them, in the same order.

    ``instruments``: number of the fault -> the instrument that saw its point (``watcher`` is approximate).
    ``run``: the run directory, below that of the qualification.
    ``windows``: by default, and if the timeline shows no batch, they follow from the batches of the step, which is right for a
    job with one query.
    """
    if len(step.cells) == 1:
        found = [_after_run_alone(step.cells[0], verdict, instruments.get(0), run)]
    else:
        if windows is None or not windows.first:
            windows = by_batch(step, (batch.query for batch in verdict.batches))
        unplaced = _find_unplaced(windows, verdict)
        found = [
            _after_shared_run(step, index, verdict, instruments.get(index), run, unplaced, windows)
            for index in range(len(step.cells))
        ]
    return [_counted(before, cell, batch) for before, cell, batch in zip(step.cells, found, step.batches, strict=True)]


def _counted(before: Cell, after: Cell, batch: int) -> Cell:
    """Return the cell with this try counted. A repetition that shows nothing takes back nothing.

    If it shows something that may belong to other cells of its run, the cell is pending again, for a run of its own.
    """
    if before.state is not CellState.PENDING and after.verdict is not Outcome.VIOLATED and after.why is not None:
        if after.shared is not None and after.shared.anomalies:
            return replace(after, state=CellState.PENDING, verdict=None)
        return replace(before, runs=after.runs)
    decided = after.exercised and after.verdict is not None
    return replace(after, hits=(*before.hits, batch)) if decided else after


def unclaimed(found: Iterable[Cell], verdicts: Mapping[str, Verdict]) -> dict[str, dict[str, int]]:
    """Return what violated runs show and none of their violated cells does: run -> anomaly -> number of rows or records.

    A violation is never retried away: if each cell of a run holds when run alone, the shared run is still violated.
    """
    violated = [cell for cell in found if cell.verdict is Outcome.VIOLATED]
    rest: dict[str, dict[str, int]] = {}
    for run, verdict in verdicts.items():
        if verdict.outcome is Outcome.VIOLATED:
            shown = {anomaly for cell in violated if run in cell.runs for anomaly in cell.anomalies}
            if left := {name: count for name, count in verdict.anomalies().items() if name not in shown}:
                rest[run] = left
    return rest


def _after_run_alone(cell: Cell, verdict: Verdict, instrument: str | None, run: str) -> Cell:
    """Return the cell after a run of its own, whose findings are all the cell's.

    If that run is inconclusive, the cell keeps what a shared run showed.
    """
    fault = verdict.faults[0] if verdict.faults else None
    ran = replace(cell, runs=(*cell.runs, run), evidence=_evidence(fault), alone=True)
    found = _all_found(verdict)
    if fault is not None and fault.hit:
        return ran.with_found(
            found,
            state=_state(cell, instrument),
            verdict=verdict.outcome,
            why=None if verdict.outcome is Outcome.HELD else _first_line(verdict),
            shared=cell.shared if verdict.outcome is Outcome.INCONCLUSIVE else None,
        )
    missed = replace(ran, state=CellState.NOT_REACHED, why=_why_missed(fault) or _first_line(verdict))
    if verdict.outcome is not Outcome.VIOLATED:
        return missed
    # The findings count, even if the fault is not proven to have hit.
    return missed.with_found(found, verdict=Outcome.VIOLATED, shared=None)


def _after_shared_run(
    step: RunStep,
    index: int,
    verdict: Verdict,
    instrument: str | None,
    run: str,
    unplaced: _Unplaced | None,
    windows: Windows,
) -> Cell:
    cell = step.cells[index]
    fault = verdict.faults[index] if index < len(verdict.faults) else None
    ran = replace(cell, runs=(*cell.runs, run), evidence=_evidence(fault))
    hit = fault is not None and fault.hit
    window = [batch for batch in verdict.batches if windows.possible(batch.query, batch.batch, index)]
    sure = {_name(batch) for batch in window if windows.sure(batch.query, batch.batch, index)}
    found = _found_in(verdict, sure)

    def undecided(why: str, found: Found, suspects: Iterable[int]) -> Cell:
        """Return the cell marked for a run of its own, with what is known of it until then."""
        others = tuple(step.cells[other].title() for other in suspects if other != index and _fired(verdict, other))
        seen = Shared(run, why, hit, others, found.anomalies, found.outputs, found.witnesses) if hit or found else None
        near = cell.approximate or (hit and instrument == "watcher")
        return replace(ran, alone=True, approximate=near, why=why, shared=seen)

    all_cells = range(len(step.cells))
    if not hit:
        fired = fault is not None and fault.fired
        return undecided(str(_why_missed(fault)), found if fired and windows.ordered else _NOTHING, all_cells)
    if found and not windows.ordered:
        return undecided(_DISORDER, found, all_cells)
    damaged = _first_violated_before(windows, index, verdict)
    if found and damaged is not None and not _caused_there(verdict, sure):
        query, number = damaged
        of_query = f" of query {query}" if len(windows.first) > 1 else ""
        why = (
            f"batch {number}{of_query} of the shared run was violated before this fault, and this may be a consequence"
        )
        return undecided(why, found, [i for i in range(index) if windows.possible(query, number, i)] or range(index))
    doubt = next((batch for batch in window if _name(batch) not in sure and _found_in(verdict, {_name(batch)})), None)
    known = doubt is None and unplaced is None and bool(window)
    right = known and all(batch.verdict is Outcome.HELD for batch in window)
    if found:
        done = Outcome.VIOLATED
    elif right or verdict.outcome is Outcome.HELD:  # a run that held has no findings to assign
        done = Outcome.HELD
    elif unplaced is not None:
        return undecided(unplaced.why, unplaced.found, all_cells)
    elif doubt is not None:
        why = f"batch {_name(doubt)} of the shared run is violated, and either of two faults may have struck it"
        suspects = [i for i in all_cells if windows.possible(doubt.query, doubt.batch, i)]
        return undecided(why, _found_in(verdict, {_name(doubt)}), suspects)
    else:
        return undecided("the shared run does not show whether its batches are right", _NOTHING, ())
    return ran.with_found(found, state=_state(cell, instrument), verdict=done, why=None)


def _fired(verdict: Verdict, index: int) -> bool:
    return index < len(verdict.faults) and verdict.faults[index].fired


def _first_violated_before(windows: Windows, index: int, verdict: Verdict) -> tuple[str, int] | None:
    """Return query and number of the first violated batch before the cell's window."""
    names = {name for f in verdict.findings if f.violates for name, effects in f.batches.items() if effects}
    before = sorted((number, query) for query, number in map(_split, names) if windows.before(query, number, index))
    return (before[0][1], before[0][0]) if before else None


def _caused_there(verdict: Verdict, window: set[str]) -> bool:
    """Whether every finding in these batches shows that it was caused in its own batch, or comes with one there that does."""
    here = [(f, {name for name, rows in f.batches.items() if rows and name in window}) for f in _violating(verdict)]
    here = [(finding, names) for finding, names in here if names]
    shown = [(f.anomaly, names) for f, names in here if f.source in _checker(f.anomaly).own_batch]
    return all(
        any(
            names <= of_shown and (finding.anomaly == anomaly or finding.anomaly in _checker(anomaly).comes_with)
            for anomaly, of_shown in shown
        )
        for finding, names in here
    )


def _checker(anomaly: str) -> type[Checker]:
    return checkers.get(anomaly) if anomaly in checkers.names() else Checker


def _name(batch: BatchReport) -> str:
    return f"{batch.query}/{batch.batch}"


def _split(batch: str) -> tuple[str, int]:
    """Split ``query/batch``."""
    query, _, number = batch.rpartition("/")
    return query, int(number)


# -- what was found ---------------------------------------------------------------------------------------------------

_NOTHING = Found({}, (), {})


def _all_found(verdict: Verdict) -> Found:
    """Return everything that violates the claim."""
    return _gather((finding, finding.total, finding.witnesses) for finding in _violating(verdict))


def _found_in(verdict: Verdict, window: set[str]) -> Found:
    """Return what violates the claim in these batches (``query/batch``)."""
    return _gather(
        (
            finding,
            sum(count for batch, count in finding.batches.items() if batch in window),
            [witness for witness in finding.witnesses if _belongs_to(witness, finding, window)],
        )
        for finding in _violating(verdict)
    )


def _violating(verdict: Verdict) -> list[Finding]:
    return [finding for finding in verdict.findings if finding.violates]


def _belongs_to(witness: Witness, finding: Finding, window: set[str]) -> bool:
    """Whether the witness is certainly from one of these batches: a witness names its batch and not the query."""
    of_number = {name for name in finding.batches if _split(name)[1] == witness.batch}
    return bool(of_number) and of_number <= window


def _gather(parts: Iterable[tuple[Finding, int, Iterable[Witness]]]) -> Found:
    anomalies: dict[str, int] = {}
    outputs = set()
    witnesses: dict[str, str] = {}
    for finding, rows, seen in parts:
        if not rows:
            continue
        anomalies[finding.anomaly] = anomalies.get(finding.anomaly, 0) + rows
        outputs.add(finding.output)
        for witness in seen:
            witnesses.setdefault(finding.anomaly, _describe_witness(witness))
    return Found(anomalies, tuple(sorted(outputs)), witnesses)


def _describe_witness(witness: Witness) -> str:
    """``id=5 (batch 2, input orders/0@655, output booked xid 758, booked xid 759)``"""
    where = [f"batch {witness.batch}"] if witness.batch is not None else []
    where += [f"input {witness.cause}"] if witness.cause is not None else []
    where += [f"output {', '.join(witness.positions)}"] if witness.positions else []
    name = ", ".join(f"{column}={value}" for column, value in witness.identity.items())
    return f"{name} ({'; '.join(where)})" if where else name


def _find_unplaced(windows: Windows, verdict: Verdict) -> _Unplaced | None:
    """Return the findings that lie partly outside all windows, or None if every row belongs to some cell."""
    reasons: list[str] = []
    parts: list[tuple[Finding, int, Iterable[Witness]]] = []
    for finding in _violating(verdict):
        lost = finding.total - sum(finding.batches.values())
        early = {name: rows for name, rows in finding.batches.items() if rows and windows.before(*_split(name), 0)}
        if lost > 0:
            reasons.append(f"the batch of {times(lost, 'row')} with {finding.anomaly} in {finding.output} is not known")
            parts.append((finding, lost, [w for w in finding.witnesses if w.batch is None]))
        elif not windows.ordered:
            reasons.append(_DISORDER)
            parts.append((finding, finding.total, finding.witnesses))
        elif early:
            where = f"in batch {next(iter(early))}, before the first fault"
            reasons.append(f"{finding.anomaly} in {finding.output} is {where}")
            parts.append(
                (finding, sum(early.values()), [w for w in finding.witnesses if _belongs_to(w, finding, set(early))])
            )
    return _Unplaced(reasons[0], _gather(parts)) if parts else None


def _state(cell: Cell, instrument: str | None) -> CellState:
    return CellState.APPROXIMATE if cell.approximate or instrument == "watcher" else CellState.EXERCISED


def _evidence(fault: FaultReport | None) -> tuple[str, ...]:
    return () if fault is None else fault.evidence


def _why_missed(fault: FaultReport | None) -> str | None:
    """Return why the fault missed, with all of its evidence: the reason is often the last sentence."""
    if fault is None or fault.hit:
        return None
    how = "it was put in place, and is not proven to have hit" if fault.fired else "it never fired"
    return f"{how}: {'; '.join(fault.evidence)}" if fault.evidence else how


def _first_line(verdict: Verdict) -> str:
    return verdict.reasons[0].splitlines()[0] if verdict.reasons else verdict.outcome.value
