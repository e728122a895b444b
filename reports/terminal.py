"""The verdict for a person, on a terminal or in a CI log: what happened, the evidence, and what to do next."""

from __future__ import annotations

import io
from typing import Any, ClassVar

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from onceproof.judge.findings import FaultReport, Finding, Outcome, Verdict, Witness
from onceproof.report import RunSet, ScenarioResult, reports

_STYLE = {
    Outcome.HELD: "bold green",
    Outcome.VIOLATED: "bold red",
    Outcome.INCONCLUSIVE: "bold yellow",
    Outcome.ERROR: "bold magenta",
    Outcome.INTERRUPTED: "bold magenta",
}
_WITNESSES = 3
_LABEL = 10


@reports.register("terminal")
class TerminalReport:
    """Fits 80 columns; the word of the verdict says the same as its colour, so nothing is lost without colour."""

    about: ClassVar[str] = "text for a terminal or a CI log"

    def __init__(self, *, color: bool = False, width: int = 80) -> None:
        self._color = color
        self._width = width

    def render(self, runs: RunSet) -> str:
        page = _Page(self._color, self._width)
        for index, result in enumerate(runs.results):
            if index:
                page.blank()
            _result(page, result)
        if len(runs.results) > 1:
            _summary(page, runs)
        return page.text()

    def summary(self, runs: RunSet) -> str:
        """A line for each scenario: the end of a long log, after each one's own report."""
        page = _Page(self._color, self._width)
        _summary(page, runs)
        return page.text()


class _Page:
    """Labelled lines with a hanging indent. User's values go in as `Text`: square brackets in them are no markup."""

    def __init__(self, color: bool, width: int) -> None:
        self._out = io.StringIO()
        self._console = Console(
            file=self._out,
            width=width,
            force_terminal=color,
            no_color=not color,
            color_system="standard" if color else None,
            highlight=False,
            emoji=False,
        )

    def line(self, label: str, value: str | Text, style: str = "") -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=_LABEL, no_wrap=True)
        grid.add_column(ratio=1, overflow="fold")
        grid.add_row(Text(label, style="bold"), value if isinstance(value, Text) else Text(value, style=style))
        self._console.print(grid)

    def unbroken(self, label: str, value: str) -> None:
        """A value that is copied from the screen (path, command): never wrapped by us."""
        line = Text(f"{label:<{_LABEL}} ", style="bold") + Text(value, style="not bold")
        self._console.print(line, soft_wrap=True)

    def below(self, value: str | Text | Table, depth: int = 1, style: str = "") -> None:
        shown = Text(value, style=style) if isinstance(value, str) else value
        self._console.print(Padding(shown, (0, 0, 0, 2 * depth)))

    def rule(self) -> None:
        self._console.print(Rule(style="dim"))

    def blank(self) -> None:
        self._console.print()

    def text(self) -> str:
        # Padding and grids fill their lines with blanks up to the width: noise in a log, and in what is copied.
        return "\n".join(line.rstrip() for line in self._out.getvalue().splitlines()) + "\n"


def _result(page: _Page, result: ScenarioResult) -> None:
    style = _STYLE[result.outcome]
    head = Text(result.outcome.value.upper(), style=style) + Text(f"  {result.scenario}", style="bold")
    if result.verdict is not None:
        head += Text(f"   {result.verdict.seconds:.0f} s, seed {result.verdict.seed}", style="dim")
    page.rule()
    page.below(head, 0)
    if result.error is not None:
        page.below(str(result.error), 1)
    elif result.verdict is not None:
        _verdict(page, result.verdict)
        if result.expect.verdict != "held":
            wanted = ", ".join([result.expect.verdict, *result.expect.anomalies])
            page.line("expected", f"{wanted}: {'met' if result.expect_met else 'NOT met'}")
    if result.run_dir is not None:
        page.unbroken("run", str(result.run_dir))
        if result.error is not None:
            page.unbroken("logs", str(result.run_dir / "logs"))
        else:
            page.unbroken("next", f"onceproof check {result.run_dir}")


def _verdict(page: _Page, verdict: Verdict) -> None:
    for index, reason in enumerate(verdict.reasons):
        page.line("why" if index == 0 else "", reason)
    page.line("claim", _claim(verdict.claim))
    _counts(page, verdict.counts)
    if verdict.faults:
        _faults(page, verdict.faults)
    violating = [finding for finding in verdict.findings if finding.allowed is None]
    for finding in violating:
        page.blank()
        _finding(page, finding)
    for finding in verdict.findings:
        if finding.allowed is not None:
            page.line("allowed", f"{finding.anomaly} in {finding.output}: {_effects(finding.total)}. {finding.allowed}")
    if violating:
        page.blank()
    for index, (checker, why) in enumerate(sorted(verdict.not_evaluated.items())):
        page.line("not eval." if index == 0 else "", f"{checker}: {why}", "yellow")


def _claim(claim: dict[str, Any]) -> str:
    """``{"delivery": "effectively-once", "order": "none"}`` -> ``effectively-once; order none``."""
    rest = [f"{name} {value}" for name, value in claim.items() if name != "delivery"]
    return "; ".join([str(claim.get("delivery", "none stated")), *rest])


def _counts(page: _Page, counts: dict[str, int]) -> None:
    parts = []
    for name, count in counts.items():
        kind, _, output = name.partition(".")
        parts.append(f"{kind}{f' {output}' if output else ''} {count:,}")
    if parts:
        page.line("counts", "; ".join(parts))


def _faults(page: _Page, faults: tuple[FaultReport, ...]) -> None:
    page.line("faults", f"{sum(fault.hit for fault in faults)} of {len(faults)} hit")
    for number, fault in enumerate(faults, start=1):
        where = f"batch {fault.batch}" if fault.batch is not None else "no batch"
        point = f" @ {fault.point}" if fault.point else ""
        query = f" of {fault.query}" if fault.query else ""
        line = Text(f"{number}  {fault.fault} {fault.target}, {where}{point}{query}: ")
        page.below(line + _stage(fault), 1)
        for sentence in fault.evidence:
            page.below(sentence, 3, "dim" if fault.hit else "yellow")


def _stage(fault: FaultReport) -> Text:
    """How far it came: armed -> fired -> hit."""
    if fault.hit:
        return Text("HIT", style="green")
    reached = "fired, " if fault.fired else "armed, never fired, " if fault.armed else "never armed, "
    return Text(f"{reached}NOT HIT", style="bold yellow")


def _finding(page: _Page, finding: Finding) -> None:
    source = f" by {finding.source}" if finding.source is not None else ""
    title = Text(finding.anomaly, style="bold red") + Text(f" in {finding.output}{source}: {_effects(finding.total)}")
    page.below(title, 0)
    page.below(finding.summary, 1)
    for source, count in sorted(finding.attribution.items(), key=lambda item: (-item[1], item[0])):
        page.below(f"{count:,} from {source}", 1)
    for witness in finding.witnesses[:_WITNESSES]:
        _witness(page, witness)
    more = finding.total - min(len(finding.witnesses), _WITNESSES)
    if more > 0 and finding.witnesses:
        page.below(f"... and {more:,} more (verdict.json holds {len(finding.witnesses)} witnesses)", 1, "dim")


def _witness(page: _Page, witness: Witness) -> None:
    name = ", ".join(f"{column}={value}" for column, value in witness.identity.items())
    batch = f"  (batch {witness.batch})" if witness.batch is not None else ""
    page.below(Text("- ") + Text(name, style="bold") + Text(batch), 1)
    if witness.cause is not None:
        page.below(f"input: {witness.cause}", 2)
    if witness.positions:
        page.below(f"output: {', '.join(witness.positions)}", 2)
    for line in witness.argument.splitlines():
        page.below(line, 2)


def _effects(count: int) -> str:
    return f"{count:,} effect" if count == 1 else f"{count:,} effects"


def _summary(page: _Page, runs: RunSet) -> None:
    page.rule()
    table = Table.grid(padding=(0, 2))
    for result in runs.results:
        anomalies = ", ".join(result.verdict.anomalies()) if result.verdict is not None else ""
        expectation = ("as expected" if result.expect_met else "NOT as expected") if runs.by_expectation else ""
        table.add_row(
            Text("ok" if runs.passed(result) else "FAILED", style="green" if runs.passed(result) else "bold red"),
            Text(result.scenario),
            Text(result.outcome.value, style=_STYLE[result.outcome]),
            Text(anomalies),
            Text(expectation),
        )
    page.below(table, 0)
    passed = sum(runs.passed(result) for result in runs.results)
    wanted = "as expected" if runs.by_expectation else "held"
    page.below(f"{passed} of {len(runs.results)} {wanted}", 0, "bold")
