"""The result of a qualification for people, at most 100 columns wide, and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from onceproof.judge.findings import Finding, Outcome
from onceproof.points import Point
from onceproof.qualify.cells import Cell, State, kinds
from onceproof.qualify.session import Result
from onceproof.qualify.strongest import DELIVERIES
from onceproof.qualify.telling import clock
from onceproof.reports.page import Page
from onceproof.scenario.model import Claim

_STYLE = {Outcome.HELD: "green", Outcome.VIOLATED: "bold red", Outcome.INCONCLUSIVE: "bold yellow"}
_FINDINGS = 4


def as_text(result: Result, *, color: bool = False, width: int = 100) -> str:
    """The whole of it: what held, the matrix, what was found and how to repeat it, what was not exercised and why."""
    page = Page(color, width)
    page.rule()
    head = Text(result.outcome.value.upper(), style=_STYLE.get(result.outcome, "bold magenta"))
    spent = f"{clock(result.progress.spent_s)} in {result.progress.steps} runs"
    page.below(head + Text(f"  qualification of {result.scenario.name}   {spent}, seed {result.progress.seed}"), 0)
    page.line("statement", statement(result))
    if result.cells:
        _proven(page, result)
        page.blank()
        page.below(_table(result.cells), 0)
        _violated(page, result)
        _unsettled(page, result.cells)
        _not_applicable(page, result.cells)
    else:
        _findings(page, result.first.findings)
        for reason in result.first.reasons:
            page.line("why", reason)
    page.unbroken("directory", str(result.directory.path))
    if result.unfinished:
        page.unbroken("next", f"onceproof qualify --continue {result.directory.path}")
    elif not result.cells and result.progress.first is not None:
        page.unbroken("next", f"onceproof check {result.directory.path / result.progress.first}")
    return page.text()


def statement(result: Result) -> str:
    """One sentence that claims no more than was exercised."""
    if not result.cells:
        return (
            f"without any fault the verdict is {result.first.outcome}: no fault was tried, "
            "for what the job does under one would say nothing"
        )
    reachable = [cell for cell in result.cells if cell.reachable]
    exercised = [cell for cell in reachable if cell.exercised]
    near = sum(cell.state is State.APPROXIMATE for cell in exercised)
    of = f"{len(exercised)} of {len(reachable)} reachable cells, each exercised once"
    of += f" ({near} of them approximately)" if near else ""
    strongest = result.strongest
    if strongest is None:
        return f"nothing is claimed: of {len(reachable)} reachable cells none was exercised"
    others = ", ".join(f"{name} {value}" for name, value in strongest.others.items())
    if strongest.delivery is not None:
        what = f"the strongest claim that held is {strongest.delivery}{f', {others}' if others else ''}"
    else:
        broken = all(level in strongest.broken for level in DELIVERIES)
        what = "no promise of delivery held" if broken else "whether a promise of delivery held is in doubt"
        what += f"; {others} {'did' if broken else 'held'}" if others else ""
    missing = len(reachable) - len(exercised)
    rest = f"; of the {missing} not exercised nothing is claimed" if missing else ""
    return f"in {of}, {what}{rest}"


def _proven(page: Page, result: Result) -> None:
    strongest = result.strongest
    if strongest is None:
        return
    page.line("claimed", _claimed(result.scenario.claim))
    for name, output in result.scenario.outputs.items():
        if output.claim is not None:
            page.line("", f"output {name}: {_claimed(output.claim)}")
    for promise, anomalies in strongest.broken.items():
        page.line("broken", f"{promise}: by {', '.join(anomalies)}")
    for doubt in strongest.doubts:
        page.line("in doubt", doubt)
    if result.progress.replaced:
        page.line("replaced", f"the scenario's own chaos ({result.progress.replaced}) was not used")


def _claimed(claim: Claim) -> str:
    return ", ".join([claim.delivery, f"order {claim.order}", f"atomic {claim.atomic}", claim.liveness])


def _table(found: Iterable[Cell]) -> Table:
    columns = list(dict.fromkeys(cell.column for kind in kinds() for cell in found if cell.kind == kind))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("point", no_wrap=True)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for point in Point:
        of_point = [cell for cell in found if cell.point is point]
        table.add_row(Text(point), *(_entry([c for c in of_point if c.column == column]) for column in columns))
    return table


def _entry(found: list[Cell]) -> Text:
    """Several tries in one field (two sinks, two queries, two forms) are counted; below the table stands which is which."""
    reachable = [cell for cell in found if cell.reachable]
    if not reachable:
        return Text("n/a", style="dim")
    words = [_word(cell) for cell in reachable]
    if len(words) == 1:
        return words[0]
    distinct = {word.plain: word for word in words}
    return Text("\n").join(
        Text(f"{sum(word.plain == name for word in words)} ") + word for name, word in sorted(distinct.items())
    )


def _word(cell: Cell) -> Text:
    near = "~" if cell.state is State.APPROXIMATE else ""
    if cell.verdict is not None:
        unproven = "" if cell.exercised else "?"
        return Text(f"{near}{cell.verdict}{unproven}", style=_STYLE[cell.verdict])
    return Text(cell.state.value, style="yellow")


def _violated(page: Page, result: Result) -> None:
    for cell in result.cells:
        if cell.verdict is not Outcome.VIOLATED:
            continue
        page.blank()
        page.below(Text("violated  ", style="bold red") + Text(cell.title()), 0)
        found = ", ".join(f"{anomaly} {count:,} effects" for anomaly, count in sorted(cell.anomalies.items()))
        where = f" in {', '.join(cell.outputs)}" if cell.outputs else ""
        page.below(f"{found or 'see its run'}{where}", 1)
        if not cell.exercised:
            page.below(f"the fault is not proven to have hit: {cell.why}", 1, "yellow")
        for sentence in cell.evidence:
            page.below(sentence, 1, "dim")
        page.unbroken("  repeat" if cell.alone else "  would repeat", result.directory.command_of(cell))
        if cell.runs:
            page.unbroken("  seen in", str(result.directory.path / cell.runs[-1]))
    for run, anomalies in result.unclaimed.items():
        page.blank()
        page.below(Text("violated  ", style="bold red") + Text("in a run of several cells, and by none of them"), 0)
        page.below(", ".join(f"{anomaly} {count:,} effects" for anomaly, count in sorted(anomalies.items())), 1)
        page.unbroken("  seen in", str(result.directory.path / run))


def _findings(page: Page, findings: Iterable[Finding]) -> None:
    for finding in [f for f in findings if f.violates][:_FINDINGS]:
        page.line("found", f"{finding.anomaly} in {finding.output}: {finding.summary}")
        for witness in finding.witnesses[:1]:
            page.below(", ".join(f"{k}={v}" for k, v in witness.identity.items()), 2)
            for line in witness.argument.splitlines():
                page.below(line, 2)


def _unsettled(page: Page, found: Iterable[Cell]) -> None:
    """What was reachable and says nothing good, by reason: not reached, or exercised and inconclusive. And what was only near."""
    lines: dict[tuple[str, str], list[str]] = {}
    for cell in found:
        if cell.reachable and cell.verdict not in (Outcome.VIOLATED, Outcome.HELD):
            label = "unclear" if cell.exercised else "unreached"
            lines.setdefault((label, str(cell.why)), []).append(cell.title())
    near = [cell.title() for cell in found if cell.state is State.APPROXIMATE]
    if lines or near:
        page.blank()
    for (label, why), titles in lines.items():
        page.line(label, f"{'; '.join(titles)}: {why}", "yellow")
    if near:
        page.line("~", f"placed approximately, by the watcher of the checkpoint: {'; '.join(near)}")


def _not_applicable(page: Page, found: Iterable[Cell]) -> None:
    """Grouped by reason: the same one stands for many cells."""
    reasons: dict[str, list[str]] = {}
    for cell in found:
        if not cell.reachable:
            reasons.setdefault(str(cell.why), []).append(f"{cell.column} at {cell.point}")
    if reasons:
        page.blank()
    for index, (why, cells) in enumerate(reasons.items()):
        elsewhere = why.startswith(f"{cells[0].partition(' ')[0]} strikes only at")
        page.line("n/a" if index == 0 else "", why if elsewhere else f"{', '.join(cells)}: {why}", "dim")


def as_json(result: Result) -> dict[str, Any]:
    """``verdict``, ``statement``, ``strongest``, ``matrix`` (point -> column -> cells), ``cells``, and where to go on."""
    told = [_cell(cell, result) for cell in result.cells]
    matrix: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for cell in told:
        entry = {key: cell[key] for key in ("name", "state", "verdict", "why")}
        matrix.setdefault(cell["point"], {}).setdefault(cell["column"], []).append(entry)
    unfinished = result.unfinished
    return {
        "scenario": result.scenario.name,
        "verdict": result.outcome.value,
        "statement": statement(result),
        "claim": result.scenario.claim.model_dump(mode="json"),
        "strongest": None if result.strongest is None else result.strongest.to_json(),
        "without_faults": {
            "verdict": result.first.outcome.value,
            "reasons": list(result.first.reasons),
            "anomalies": result.first.anomalies(),
            "run": None if result.progress.first is None else str(result.directory.path / result.progress.first),
        },
        "unclaimed": [
            {"run": str(result.directory.path / run), "anomalies": found} for run, found in result.unclaimed.items()
        ],
        "cells": told,
        "matrix": matrix,
        "replaced_faults": result.progress.replaced,
        "seed": result.progress.seed,
        "budget_s": result.budget_s,
        "seconds": result.progress.spent_s,
        "ended": result.progress.ended,
        "directory": str(result.directory.path),
        "continue": f"onceproof qualify --continue {result.directory.path}" if unfinished else None,
    }


def _cell(cell: Cell, result: Result) -> dict[str, Any]:
    document = cell.to_json()
    violated = cell.verdict is Outcome.VIOLATED
    return {
        **{key: document[key] for key in ("name", "kind", "query", "words", "evidence", "why")},
        "point": str(cell.point),
        "column": cell.column,
        "target": cell.target,
        "state": cell.state.value,
        "verdict": None if cell.verdict is None else cell.verdict.value,
        "anomalies": dict(cell.anomalies),
        "outputs": list(cell.outputs),
        "runs": [str(result.directory.path / run) for run in cell.runs],
        "repeat": result.directory.command_of(cell) if violated else None,
        "repeat_was_run": cell.alone if violated else None,
    }
