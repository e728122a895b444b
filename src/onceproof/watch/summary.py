"""Counts what the windows of a watch have shown, and makes its final verdict."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from onceproof.base.words import are, times
from onceproof.judge.findings import MAX_WITNESSES, NO_FAULT, Finding, Outcome, StatedClaim, Verdict
from onceproof.scenario.model import Scenario
from onceproof.watch.judging import Settlement, Windows
from onceproof.watch.per_record import unjudged
from onceproof.watch.unmatched import Late

#: At most so many different doubts are kept; the others are counted.
_MOST_DOUBTS = 20


@dataclass
class Tally:
    """What has been found so far. It does not grow with the number of windows."""

    windows: int = 0
    records: int = 0
    due: Counter[str] = field(default_factory=Counter)
    """Output -> how many rows were expected in it."""
    found: int = 0
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)
    """(anomaly, output) -> the first finding, with the total of all, and witnesses of all."""
    late: int = 0
    doubts: dict[str, int] = field(default_factory=dict)
    """Doubt -> how often."""
    more_doubts: int = 0
    failed: str | None = None
    """Why it could not be continued."""
    cut_short: bool = False
    """A second signal ended it before the last windows were settled."""
    problem: str | None = None
    """Why the brokers did not answer when it ended."""
    open: int = 0
    """Input records that were read and not judged."""

    def begin(self, scenario: Scenario) -> tuple[str, ...]:
        """Note what the verdict will not cover, and return it."""
        notices = tuple(unjudged(scenario))
        self.doubts |= dict.fromkeys(notices, 1)
        return notices

    def add(self, settlement: Settlement) -> None:
        if not settlement.window.lead_in:
            self.windows += 1
            self.records += settlement.window.records
            self.found += settlement.found
            self.due.update(settlement.due)
        for finding in settlement.findings:
            key = (finding.anomaly, finding.output)
            if (before := self.findings.get(key)) is not None:
                witnesses = (*before.witnesses, *finding.witnesses)[:MAX_WITNESSES]
                finding = replace(before, total=before.total + finding.total, witnesses=witnesses)
            self.findings[key] = finding
        self.late += sum(not late.wrong for late in settlement.late)
        for late in settlement.late:
            self._arrived(late)
        for doubt in settlement.doubts:
            if doubt in self.doubts or len(self.doubts) < _MOST_DOUBTS:
                self.doubts[doubt] = self.doubts.get(doubt, 0) + 1
            else:
                self.more_doubts += 1

    @property
    def expected(self) -> int:
        return self.due.total()

    def _arrived(self, late: Late) -> None:
        """A row that was counted as lost is not lost."""
        key = ("lost-write", late.output)
        if (finding := self.findings.get(key)) is not None:
            witnesses = tuple(w for w in finding.witnesses if w.cause != late.cause)
            self.findings[key] = replace(finding, total=finding.total - 1, witnesses=witnesses)
            if self.findings[key].total <= 0:
                del self.findings[key]


def verdict_on(scenario: Scenario, tally: Tally, windows: Windows, seconds: float) -> Verdict:
    """The verdict on everything that was settled. Rows that arrived late are not lost."""
    findings = [replace(f, summary=_in_all(f)) for _, f in sorted(tally.findings.items())]
    violations = [finding for finding in findings if finding.violates]
    doubts = _doubts(tally, scenario)
    doubts += [f"{f.anomaly} in output {f.output}: {f.undecided}" for f in findings if f.undecided is not None]
    if violations:
        outcome = Outcome.VIOLATED
        reasons = [f"{f.anomaly} in output {f.output}: {f.summary}" for f in violations]
        reasons += [f"in addition, this could not be proved: {doubt}" for doubt in doubts]
    elif doubts:
        outcome, reasons = Outcome.INCONCLUSIVE, doubts
    else:
        outcome = Outcome.HELD
        rows = times(tally.expected, "expected row")
        read = times(tally.records, "input record")
        reasons = [f"{NO_FAULT}: {rows} of {read} in {times(tally.windows, 'window')} match the output"]
    if tally.late:
        reasons.append(
            f"{times(tally.late, 'row')} arrived after the grace period, and {are(tally.late)} not counted as lost"
        )
    return Verdict(
        scenario=scenario.name,
        outcome=outcome,
        claim=StatedClaim.of(scenario),
        reasons=tuple(reasons),
        findings=tuple(findings),
        counts={
            "input": tally.records,
            "windows": tally.windows,
            "expected": tally.expected,
            "effects": tally.found,
            "late": tally.late,
            "open": tally.open,
        },
        seed=scenario.seed,
        seconds=round(seconds, 3),
    )


def _in_all(finding: Finding) -> str:
    records = times(finding.total, "record")
    return f"{records}; the first: {finding.witnesses[0].identity}" if finding.witnesses else records


def _doubts(tally: Tally, scenario: Scenario) -> list[str]:
    doubts = [f"the watch ended early: {tally.failed}"] if tally.failed is not None else []
    if tally.open and (tally.failed is not None or tally.cut_short):
        doubts.append(f"{times(tally.open, 'input record')} had been read and not judged")
    elif tally.open:
        why = tally.problem or "reading or judging took too long, as the lag shows"
        doubts.append(f"{times(tally.open, 'input record')} had been read, and could not be judged in time: {why}")
    if not (tally.records or tally.open) and tally.failed is None:
        doubts.append("no input record was written while it watched, so nothing was judged")
    elif tally.windows:
        unused = [output for output in scenario.outputs if not tally.due[output]]
        doubts += [f"the oracle expects nothing in output {output} of the input that was judged" for output in unused]
    doubts += tally.doubts
    if tally.more_doubts:
        doubts.append(f"and {times(tally.more_doubts, 'further doubt')} of the same kinds")
    return doubts
