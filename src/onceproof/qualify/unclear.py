"""Finds the reasons why runs of a qualification prove nothing. With any such reason, no promise is reported as held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from onceproof.history.run_record import RunRecord
from onceproof.judge.claims import breaks
from onceproof.judge.findings import Outcome, Verdict
from onceproof.qualify.cells import Cell
from onceproof.scenario.model import Scenario


def unclear_cells(found: Iterable[Cell]) -> list[str]:
    """Return the reasons of the exercised cells that are inconclusive. Cells with the same reason are named together."""
    by_reason: dict[str, list[str]] = {}
    for cell in filter(_is_unclear, found):
        by_reason.setdefault(str(cell.why), []).append(cell.title())
    return [f"{'; '.join(titles)}: {why}" for why, titles in by_reason.items()]


def unclear_runs(found: Iterable[Cell], verdicts: Mapping[str, Verdict], below: Path, scenario: Scenario) -> list[str]:
    """Return the reasons of the runs that decided about cells. Those that an inconclusive cell shows are not repeated.

    ``verdicts``: run directory, relative to ``below`` -> its verdict. A fault that missed is not a doubt here: its cell is run alone,
    or reported as not reached. Raises `HistoryError`.
    """
    known = {run for cell in filter(_is_unclear, found) for run in cell.runs[-1:]}
    reasons = []
    for run, verdict in verdicts.items():
        if run not in known and (why := _why_unclear(verdict, RunRecord.read(below / run).drained, scenario)):
            reasons.append(f"{run}: {why}")
    return reasons


def _is_unclear(cell: Cell) -> bool:
    return cell.exercised and cell.verdict is Outcome.INCONCLUSIVE


def _why_unclear(verdict: Verdict, drained: bool, scenario: Scenario) -> str | None:
    # For each output that was compared with an oracle's answer, the verdict has the count of what was expected.
    unjudged = [output for output in scenario.outputs if f"expected.{output}" not in verdict.counts]
    if unjudged:
        return f"what output {', '.join(unjudged)} should hold is not known, or it could not be read"
    stale = any(breaks(finding.anomaly, "liveness") and finding.violates for finding in verdict.findings)
    if not drained and not stale and any(scenario.claim_of(o).liveness != "none" for o in scenario.outputs):
        return "the run did not drain, so more may still have come"  # the judge has the same doubt
    if verdict.outcome in (Outcome.HELD, Outcome.VIOLATED):
        return None
    first = verdict.reasons[0].splitlines()[0] if verdict.reasons else f"its verdict is {verdict.outcome}"
    # The judge names doubts about the whole run before the faults that missed, and doubts about batches after them.
    missed = tuple(f"fault {fault.fault} {fault.target} " for fault in verdict.faults if not fault.hit)
    return None if first.startswith(missed) else first
