"""The verdict for people, on a terminal or in a CI log: what happened, the evidence, and what to do next."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import ClassVar

from rich.table import Table
from rich.text import Text

from onceproof.base.errors import HistoryError
from onceproof.base.visible import visible
from onceproof.history.run_record import RunRecord
from onceproof.judge.findings import BatchReport, FaultReport, Finding, Outcome, StatedClaim, Verdict, Witness
from onceproof.judge.slices.cut import name_of
from onceproof.reports import commands, fixes, tiers
from onceproof.reports.page import Look, Page
from onceproof.reports.report import RunSet, ScenarioResult, reports

_STYLE = {
    Outcome.HELD: "bold green",
    Outcome.VIOLATED: "bold red",
    Outcome.INCONCLUSIVE: "bold yellow",
    Outcome.ERROR: "bold magenta",
    Outcome.INTERRUPTED: "bold magenta",
}
_WITNESSES = 3
_BATCHES = 8
_LOG = Look()


@reports.register("terminal")
class TerminalReport:
    """Text of 80 columns, except findings. Colour only repeats what the text says, so nothing is lost without it."""

    about: ClassVar[str] = "text for a terminal or a CI log"

    def __init__(self, look: Look = _LOG, *, full: bool = True) -> None:
        """``full``: with more witnesses of each finding below its three lines."""
        self._look = look
        self._full = full

    def render(self, runs: RunSet) -> str:
        page = Page(self._look)
        for index, result in enumerate(runs.results):
            if index:
                page.blank()
            _result(page, result, full=self._full)
        if len(runs.results) > 1:
            _summary(page, runs)
        return page.text()

    def summary(self, runs: RunSet) -> str:
        """One line per scenario, for the end of a long log, after the report of each."""
        page = Page(self._look)
        _summary(page, runs)
        return page.text()


def _result(page: Page, result: ScenarioResult, *, full: bool) -> None:
    style = _STYLE[result.outcome]
    rest = _word(result).removeprefix(result.outcome.value)
    head = (
        Text(result.outcome.value.upper(), style=style)
        + Text(rest, style="bold yellow")
        + Text(f"  {result.scenario}", style="bold")
    )
    if result.verdict is not None:
        head += Text(f"   {result.verdict.seconds:.0f} s, seed {result.verdict.seed}", style="dim")
    page.rule()
    page.below(head, 0)
    if result.error is not None:
        page.below(str(result.error), 1)
    elif result.verdict is not None:
        _verdict(page, result.verdict, result.run_dir, full=full)
        if result.expect.verdict != "held":
            wanted = ", ".join([result.expect.verdict, *result.expect.anomalies])
            page.line("expected", f"{wanted}: {'met' if result.expect_met else 'NOT met'}")
    if result.run_dir is not None:
        page.unbroken("run", str(result.run_dir))
        if result.error is not None:
            page.unbroken("logs", str(result.run_dir / "logs"))
        else:
            page.unbroken("next", commands.check(result.run_dir))
            if (again := commands.run_again_of(result.run_dir)) is not None:
                page.unbroken("again", again)


def _word(result: ScenarioResult) -> str:
    return result.verdict.word if result.verdict is not None and result.error is None else result.outcome.value


def _record(run_dir: Path | None) -> RunRecord:
    """What the run says about itself; empty if it cannot be read."""
    try:
        return RunRecord() if run_dir is None else RunRecord.read(run_dir)
    except HistoryError:
        return RunRecord()


def _verdict(page: Page, verdict: Verdict, run_dir: Path | None, *, full: bool) -> None:
    for index, reason in enumerate(verdict.reasons):
        page.line("why" if index == 0 else "", reason)
    _claims(page, verdict.claim)
    _counts(page, verdict.counts)
    for index, (output, columns) in enumerate(sorted(verdict.ignored.items())):
        page.line("ignored" if index == 0 else "", f"{output}: {', '.join(columns)} (not compared)")
    if verdict.faults:
        _faults(page, verdict.faults)
    record = _record(run_dir)
    if (tier := tiers.sentence(record)) is not None:
        page.line("tier", tier)
    _batches(page, verdict.batches)
    violating = [finding for finding in verdict.findings if finding.violates]
    for finding in violating:
        page.blank()
        _finding(page, finding, record)
        if full:
            _details(page, finding, run_dir, verdict.slices.get(name_of(finding)))
    if violating:
        page.blank()
    for finding in verdict.findings:
        if finding.allowed is not None:
            page.line("allowed", f"{_title(finding)}. {finding.allowed}")
        elif finding.undecided is not None:
            page.line("undecided", f"{_title(finding)}. {finding.undecided}")
            if finding.witness_file is not None and run_dir is not None:
                page.unbroken("", f"all: {run_dir / finding.witness_file}")
    for index, (checker, why) in enumerate(sorted(verdict.not_evaluated.items())):
        page.line("not eval." if index == 0 else "", f"{checker}: {why}", "yellow")


def _claims(page: Page, claim: StatedClaim) -> None:
    """``{"delivery": "effectively-once", "order": "none"}`` -> ``effectively-once; order none``; outputs with their own below."""
    for output, promises in claim.each():
        rest = [f"{name} {level}" for name, level in promises.items() if name != "delivery"]
        text = "; ".join([promises.get("delivery", "none stated"), *rest])
        page.line("" if output else "claim", f"{output}: {text}" if output else text)


#: Counts of records and rows that are not judged, each with its sentence.
_UNJUDGED = {
    "late": "records of {of} too late for their window, so nothing is expected of them: {n:,}",
    "may": "records of {of} that came while their window closed, so the output is right with or without them: {n:,}",
    "open": "rows of {of} whose window was still open, so they are not judged: {n:,}",
    "dead": "records that dead letters in {of} account for, so they are not lost: {n:,}",
    "unordered": "rows of {of} without a place in the claimed order, so their order is not judged: {n:,}",
}


def _counts(page: Page, counts: dict[str, int]) -> None:
    parts = []
    for name, count in counts.items():
        kind, _, of = name.partition(".")
        if kind not in _UNJUDGED:
            parts.append(f"{kind}{f' {of}' if of else ''} {count:,}")
    if parts:
        page.line("counts", "; ".join(parts))
    for name, count in counts.items():
        kind, _, of = name.partition(".")
        if kind in _UNJUDGED and (count or kind == "late"):
            page.line("", _UNJUDGED[kind].format(n=count, of=of))


def _batches(page: Page, batches: tuple[BatchReport, ...]) -> None:
    """A line for each batch with a finding or a fault, and the number of the other batches."""
    if not batches:
        return
    listed = [batch for batch in batches if batch.anomalies or batch.faults]
    rest = Counter(batch.verdict for batch in batches if not batch.anomalies and not batch.faults)
    others = ", ".join(f"{count} {outcome.value}" for outcome, count in sorted(rest.items()))
    summary = f"{len(batches)} in all; those without a finding or a fault: {others or 'none'}"
    page.line("batches", summary)
    for batch in listed[:_BATCHES]:
        started = "" if batch.planned_by is None else f", planned by start {batch.planned_by}"
        ended = ", never committed" if batch.committed_by is None else f", committed by start {batch.committed_by}"
        head = f"{batch.query} {batch.batch}  {batch.records:,} records{started}{ended}: "
        found = ", ".join(f"{anomaly} {count:,}" for anomaly, count in sorted(batch.anomalies.items()))
        page.below(
            Text(head) + Text(batch.verdict.value, style=_STYLE[batch.verdict]) + (f" ({found})" if found else "")
        )
        for fault in batch.faults:
            page.below(f"active: {fault}", 3, "dim")
    if len(listed) > _BATCHES:
        page.below(f"... and {len(listed) - _BATCHES:,} more (verdict.json holds all)", 1, "dim")


def _faults(page: Page, faults: tuple[FaultReport, ...]) -> None:
    page.line("faults", f"{sum(fault.hit for fault in faults)} of {len(faults)} hit")
    for number, fault in enumerate(faults, start=1):
        # A fault of consumers has no batch, only a point.
        where = f"batch {fault.batch}" if fault.batch is not None else "at" if fault.point else "no batch"
        point = f" @ {fault.point}" if fault.point and fault.batch is not None else f" {fault.point or ''}".rstrip()
        query = f" of {fault.query}" if fault.query else ""
        line = Text(f"{number}  {fault.fault} {fault.target}, {where}{point}{query}: ")
        page.below(line + _stage(fault), 1)
        for sentence in fault.evidence:
            page.below(sentence, 3, "dim" if fault.hit else "yellow")


def _stage(fault: FaultReport) -> Text:
    """How far the fault came: armed -> fired -> hit."""
    if fault.hit:
        return Text("HIT", style="green")
    reached = "fired, " if fault.fired else "armed, never fired, " if fault.armed else "never armed, "
    return Text(f"{reached}NOT HIT", style="bold yellow")


def _title(finding: Finding) -> str:
    # The reason of an allowed transient finding already says that it is transient.
    transient = ", transient" if finding.transient and not (finding.allowed or "").startswith("transient") else ""
    return f"{finding.anomaly} in {finding.output}: {finding.summary}{transient}"


def in_words(finding: Finding) -> str | None:
    """The first row or record that shows it, and why; None if the finding has none."""
    for witness in finding.witnesses[:1]:
        cause = "" if witness.cause is None else f"; input {witness.cause}"
        return f"{_name(witness)}{cause}: {witness.argument}"
    return None


def _finding(page: Page, finding: Finding, record: RunRecord) -> None:
    what = Text(_title(finding))
    what.stylize("bold red", 0, len(finding.anomaly))
    fix = next(iter(fixes.of_run(finding.anomaly, record, finding.output)), None)
    page.finding(what, in_words(finding), fix=fix, more=f"onceproof explain {finding.anomaly}")


def _details(page: Page, finding: Finding, run_dir: Path | None, slice_: str | None) -> None:
    labels = finding.attribution
    if not (len(labels) == 1 and next(iter(labels)) in finding.summary):  # otherwise the title already says it
        for label, count in sorted(labels.items(), key=lambda item: (-item[1], item[0])):
            page.below(f"{count:,} {label}", 1)
    for witness in finding.witnesses[:_WITNESSES]:
        _witness(page, witness)
    more = finding.total - min(len(finding.witnesses), _WITNESSES)
    if more > 0 and finding.witnesses:
        kept = "" if finding.witness_file is not None else f" (verdict.json holds {len(finding.witnesses)} witnesses)"
        page.below(f"... and {more:,} more{kept}", 1, "dim")
    if finding.witness_file is not None and run_dir is not None:
        page.unbroken("  all", str(run_dir / finding.witness_file))
    if slice_ is not None and run_dir is not None:
        page.unbroken("  slice", commands.check(run_dir / slice_))


def _witness(page: Page, witness: Witness) -> None:
    page.below(Text("- ") + Text(_name(witness), style="bold"), 1)
    if witness.cause is not None:
        page.below(f"input: {witness.cause}", 2)
    if witness.positions:
        page.below(f"output: {', '.join(witness.positions)}", 2)
    for line in witness.argument.splitlines():
        page.below(line, 2)


def _name(witness: Witness) -> str:
    name = ", ".join(f"{column}={value}" for column, value in witness.identity.items())
    return name if witness.batch is None else f"{name} (batch {witness.batch})"


def _summary(page: Page, runs: RunSet) -> None:
    page.rule()
    table = Table.grid(padding=(0, 2))
    for result in runs.results:
        anomalies = ", ".join(result.verdict.anomalies()) if result.verdict is not None else ""
        expectation = ("as expected" if result.expect_met else "NOT as expected") if runs.by_expectation else ""
        table.add_row(
            Text("ok" if runs.passed(result) else "FAILED", style="green" if runs.passed(result) else "bold red"),
            Text(visible(result.scenario)),
            Text(_word(result), style=_STYLE[result.outcome]),
            Text(visible(anomalies)),
            Text(expectation),
        )
    page.below(table, 0)
    passed = sum(runs.passed(result) for result in runs.results)
    wanted = "as expected" if runs.by_expectation else "held"
    page.below(f"{passed} of {len(runs.results)} {wanted}", 0, "bold")
