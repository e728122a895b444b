"""Renders the result of a qualification: as text of at most 100 columns, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from onceproof.base.duration import clock
from onceproof.base.words import times
from onceproof.judge.findings import Finding, Outcome
from onceproof.qualify.cells import Cell, CellState, kinds
from onceproof.qualify.session import Qualification
from onceproof.qualify.strongest import promises
from onceproof.reports import fixes
from onceproof.reports.page import Look, Page
from onceproof.reports.terminal import in_words
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import Claim
from onceproof.scenario.points import Point

_STYLE = {Outcome.HELD: "green", Outcome.VIOLATED: "bold red", Outcome.INCONCLUSIVE: "bold yellow"}
_FINDINGS = 4
_NAMED = 3
_LOG = Look(width=100)


def as_text(result: Qualification, look: Look = _LOG) -> str:
    """Return the page: what held, the matrix, what was found and how to repeat it, what was not exercised and why."""
    page = Page(look)
    page.rule()
    head = Text(result.outcome.value.upper(), style=_STYLE.get(result.outcome, "bold magenta"))
    spent = f"{clock(result.progress.spent_s)} in {times(result.progress.steps, 'run')}"
    page.below(head + Text(f"  qualification of {result.scenario.name}   {spent}, seed {result.progress.seed}"), 0)
    page.line("statement", statement(result))
    if result.cells:
        _print_claims(page, result)
        page.blank()
        page.below(_table(result.cells), 0)
        explained: set[str] = set()
        _print_violated(page, result, explained)
        _print_unclaimed_runs(page, result, explained)
        _print_undecided(page, result.cells)
        _print_not_applicable(page, result.cells)
    else:
        shown = _print_first_findings(page, result)
        for reason in result.first.reasons:
            if not any(finding.summary in reason for finding in shown):
                page.line("why", reason)
        if result.progress.first is not None:
            page.unbroken("logs", str(result.directory.path / result.progress.first / "logs"))
    page.unbroken("directory", str(result.directory.path))
    if result.unfinished:
        page.unbroken("next", f"onceproof qualify --continue {result.directory.path}")
    elif not result.cells and result.progress.first is not None:
        page.unbroken("next", f"onceproof check {result.directory.path / result.progress.first}")
    return page.text()


def statement(result: Qualification) -> str:
    """Return a few sentences that claim no more than was exercised."""
    if not result.cells:
        return (
            f"without any fault the verdict is {result.first.outcome}. No fault was tried: "
            "until this run holds, a run under faults shows nothing"
        )
    reachable = [cell for cell in result.cells if cell.reachable]
    if not reachable:
        return "no cell of the matrix applies to this job: no fault was tried, and nothing is claimed"
    exercised = [cell for cell in reachable if cell.exercised]
    unproven = sum(cell.verdict is Outcome.VIOLATED and not cell.exercised for cell in reachable)
    also = (
        f"; {times(unproven, 'reachable cell')} violated, but the fault is not proven to have hit" if unproven else ""
    )
    if shared := len(result.unclaimed):
        also += f"; {times(shared, 'run')} violated in a way that no single cell shows"
    if result.strongest is None:
        return f"none of {times(len(reachable), 'reachable cell')} was exercised, so nothing is claimed{also}"
    near = sum(cell.state is CellState.APPROXIMATE for cell in exercised)
    counts = {
        "held": sum(cell.verdict is Outcome.HELD for cell in exercised),
        "violated": sum(cell.verdict is Outcome.VIOLATED and not cell.together for cell in exercised),
        "violated together with others, not separated": sum(cell.together for cell in exercised),
        "inconclusive": sum(cell.verdict is Outcome.INCONCLUSIVE for cell in exercised),
    }
    became = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    of = f"{len(exercised)} of {len(reachable)} reachable cells exercised{f' ({near} approximately)' if near else ''}"
    missing = len(reachable) - len(exercised)
    rest = f". Nothing is claimed of the other {missing}" if missing else ""
    if named := result.progress.kinds:
        rest += f". Other kinds of faults than {', '.join(named)} were not tried"
    return f"{of}: {became}{also}. {promises(result.strongest)}{rest}"


def _print_claims(page: Page, result: Qualification) -> None:
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
        page.line("note", own_faults(result.progress.replaced))


def own_faults(count: int) -> str:
    return f"the scenario's own {'fault is' if count == 1 else f'{count} faults are'} not used"


def _claimed(claim: Claim) -> str:
    return f"{claim.delivery}, order {claim.order}, atomic {claim.atomic}, liveness {claim.liveness}"


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
    """Return the text of one field. Several cells in it (two sinks, two queries, two forms) are counted; the page names them below."""
    reachable = [cell for cell in found if cell.reachable]
    if not reachable:
        return Text("n/a", style="dim")
    words = [
        Text(
            " ".join(filter(None, [cell.word, cell.counted])),
            style="yellow" if cell.verdict is None else _STYLE[cell.verdict],
        )
        for cell in reachable
    ]
    if len(words) == 1:
        return words[0]
    distinct = {word.plain: word for word in words}
    return Text("\n").join(
        Text(f"{sum(word.plain == name for word in words)} ") + word for name, word in sorted(distinct.items())
    )


def _print_violated(page: Page, result: Qualification, explained: set[str]) -> None:
    """Print each violated cell; cells that a shared run did not separate are printed together.

    ``explained``: the fixes that are on the page already.
    """
    unseparated: dict[tuple[str, str], list[Cell]] = {}
    for cell in result.cells:
        if cell.together:
            unseparated.setdefault((cell.runs[-1], str(cell.why)), []).append(cell)
        elif cell.verdict is Outcome.VIOLATED:
            page.blank()
            page.below(Text("violated  ", style="bold red") + Text(cell.title()), 0)
            if not cell.exercised:
                page.line("  unproven", f"the fault is not proven to have hit: {cell.why}", "yellow")
            _print_anomalies(page, cell, result.scenario, explained)
            page.unbroken(
                "  repeat" if cell.alone else "  alone", result.directory.command_of(cell, result.progress.stack)
            )
            if cell.runs:
                page.unbroken("  seen in", str(result.directory.path / cell.runs[-1]))
    for (run, why), cells in unseparated.items():
        page.blank()
        page.below(
            Text("violated* ", style="bold red")
            + Text(f"{times(len(cells), 'cell')} of a shared run, {_not_separated_from(cells, result)}"),
            0,
        )
        page.line("  because", why, "yellow")
        common = all(_finding_of(cell) == _finding_of(cells[0]) for cell in cells)
        if common:
            _print_anomalies(page, cells[0], result.scenario, explained)
        for cell in cells:
            page.line("  cell", cell.title())
            if not cell.exercised:
                page.line("  unproven", f"the fault is not proven to have hit: {'; '.join(cell.evidence)}", "yellow")
            if not common:
                _print_anomalies(page, cell, result.scenario, explained)
            page.unbroken("  alone", result.directory.command_of(cell, result.progress.stack))
        page.unbroken("  seen in", str(result.directory.path / run))


def _finding_of(cell: Cell) -> tuple[object, ...]:
    return (cell.anomalies, cell.outputs, cell.witnesses)


def _not_separated_from(cells: list[Cell], result: Qualification) -> str:
    """Return which cells these are not separated from, with what is known of those by now."""
    titles = {cell.title() for cell in cells}
    known = {cell.title(): f" ({_known_of(cell)})" for cell in result.cells if not cell.together}
    others = list(dict.fromkeys(other for cell in cells if cell.shared is not None for other in cell.shared.others))
    outside = [f"{other}{known.get(other, '')}" for other in others if other not in titles]
    more = f"; and {len(outside) - _NAMED} more" if len(outside) > _NAMED else ""
    parts = ["each other"] if titles & set(others) else []
    parts += [f"{'; '.join(outside[:_NAMED])}{more}"] if outside else []
    return (
        f"not separated from {' and from '.join(parts)}"
        if parts
        else "not separated from what the job does without a fault"
    )


def _print_anomalies(page: Page, cell: Cell, scenario: Scenario, explained: set[str]) -> None:
    """Print the cell's anomalies, each with the first row that shows it and, once per page, with what fixes it."""
    if not cell.anomalies:
        page.line("  found", "see the run")
    for name, count in sorted(cell.anomalies.items()):
        faults = () if cell.shared is not None else (cell.kind, str(cell.point))
        _print_anomaly(page, name, count, scenario, explained, cell.outputs, cell.witnesses.get(name), faults)


def _print_anomaly(
    page: Page,
    name: str,
    count: int,
    scenario: Scenario,
    explained: set[str],
    outputs: tuple[str, ...] = (),
    witness: str | None = None,
    faults: tuple[str, ...] = (),
) -> None:
    where = f" in {', '.join(outputs)}" if outputs else ""
    what = Text(f"{name}: {_count_with_noun(count, scenario, outputs)}{where}")
    output = outputs[0] if len(outputs) == 1 else None
    fix = next(iter(fixes.of_scenario(name, scenario, faults, output)), "")
    new = f"{name}: {fix}" not in explained
    explained.add(f"{name}: {fix}")
    page.finding(what, witness, fix=fix if fix and new else None, more=f"onceproof explain {name}", indent="  ")


def _count_with_noun(count: int, scenario: Scenario, outputs: Iterable[str] = ()) -> str:
    """Return the count with its noun: rows of tables, records of topics. Without ``outputs``, all outputs count."""
    named = [scenario.outputs[name] for name in outputs if name in scenario.outputs]
    tables = {spec.has_rows for spec in named or scenario.outputs.values()}
    if len(tables) > 1:
        return f"{count:,} rows and records"
    return times(count, "row" if tables == {True} else "record")


def _print_unclaimed_runs(page: Page, result: Qualification, explained: set[str]) -> None:
    """Print the runs that violate the claim in a way that none of their cells shows."""
    for run, anomalies in result.unclaimed.items():
        part = [cell for cell in result.cells if run in cell.runs]
        page.blank()
        head = f"a run of {times(len(part), 'cell')}" if part else "a run that was interrupted after its verdict"
        head += "; no cell is known to have caused it"
        page.below(Text("violated  ", style="bold red") + Text(head), 0)
        for name, count in sorted(anomalies.items()):
            _print_anomaly(page, name, count, result.scenario, explained)
        words: dict[str, list[str]] = {}
        for cell in part:
            words.setdefault(_known_of(cell), []).append(cell.title())
        for word, titles in words.items():
            page.line("  cells", f"{word}: {'; '.join(titles)}")
        page.unbroken("  seen in", str(result.directory.path / run))


def _known_of(cell: Cell) -> str:
    """Return what is known of a cell apart from the run that it shared."""
    alone = cell.alone and len(cell.runs) > 1
    if cell.verdict is not None and (cell.exercised or alone):
        return f"{cell.verdict} when run alone" if alone else f"not run alone, {cell.verdict} in its own batches"
    return "run alone, not decided" if alone else "not run alone"


def _print_first_findings(page: Page, result: Qualification) -> list[Finding]:
    """Print the first few findings that violate the claim without any fault, and return them."""
    shown = [f for f in result.first.findings if f.violates][:_FINDINGS]
    for finding in shown:
        fix = next(iter(fixes.of_scenario(finding.anomaly, result.scenario)), None)
        what = Text(f"{finding.anomaly} in {finding.output}: {finding.summary}")
        page.finding(what, in_words(finding), fix=fix, more=f"onceproof explain {finding.anomaly}")
    return shown


def _print_undecided(page: Page, found: Iterable[Cell]) -> None:
    """Print the reachable cells that are neither held nor violated, by reason, and those that were placed approximately."""
    lines: dict[tuple[str, str], list[str]] = {}
    for cell in found:
        if cell.reachable and cell.verdict not in (Outcome.VIOLATED, Outcome.HELD):
            label = "unclear" if cell.exercised else "unreached"
            lines.setdefault((label, str(cell.why)), []).append(cell.title())
    near = [cell.title() for cell in found if cell.exercised and cell.state is CellState.APPROXIMATE]
    if lines or near:
        page.blank()
    for (label, why), titles in lines.items():
        page.line(label, f"{'; '.join(titles)}: {why}", "yellow")
    if near:
        page.line("~", f"placed approximately, by watching the checkpoint's files: {'; '.join(near)}")


def _print_not_applicable(page: Page, found: Iterable[Cell]) -> None:
    """Print the cells that the job does not have, with the reasons, and the number of those that onceproof cannot place."""
    absent = [cell for cell in found if not cell.reachable]
    reasons = list(dict.fromkeys(str(cell.why) for cell in absent if not cell.of_tool))
    of_tool = sum(cell.of_tool for cell in absent)
    absent_from_job = len(absent) - of_tool
    verb = "cell does" if absent_from_job == 1 else "cells do"
    parts = [f"{absent_from_job} {verb} not apply to this job: {'; '.join(reasons)}"] if reasons else []
    parts += (
        [f"{of_tool} more: onceproof cannot place them (--json lists the reasons; docs/qualify.md)"] if of_tool else []
    )
    if parts:
        page.blank()
        page.line("n/a", ". ".join(parts), "dim")


def as_json(result: Qualification) -> dict[str, Any]:
    """Return ``verdict``, ``statement``, ``strongest``, ``matrix`` (point -> column -> cells), ``cells``, and how to continue."""
    documents = [_cell(cell, result) for cell in result.cells]
    matrix: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for cell in documents:
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
            {
                "run": str(result.directory.path / run),
                "anomalies": found,
                "cells": {cell.name: _known_of(cell) for cell in result.cells if run in cell.runs},
            }
            for run, found in result.unclaimed.items()
        ],
        "cells": documents,
        "matrix": matrix,
        "replaced_faults": result.progress.replaced,
        "seed": result.progress.seed,
        "budget_s": result.budget_s,
        "seconds": result.progress.spent_s,
        "ended": result.progress.ended,
        "directory": str(result.directory.path),
        "continue": f"onceproof qualify --continue {result.directory.path}" if unfinished else None,
    }


def _cell(cell: Cell, result: Qualification) -> dict[str, Any]:
    document = cell.to_json()
    violated = cell.verdict is Outcome.VIOLATED
    return {
        **{key: document[key] for key in ("name", "kind", "query", "words", "evidence", "why", "of_tool")},
        "point": str(cell.point),
        "column": cell.column,
        "target": cell.target,
        "state": cell.state.value,
        "verdict": None if cell.verdict is None else cell.verdict.value,
        "tries": cell.tries,
        "hits": list(cell.hits),
        "anomalies": dict(cell.anomalies),
        "outputs": list(cell.outputs),
        "witnesses": dict(cell.witnesses),
        "fixes": {name: list(fixes.of_scenario(name, result.scenario)) for name in cell.anomalies},
        "not_separated_from": list(cell.shared.others) if cell.together and cell.shared is not None else None,
        "runs": [str(result.directory.path / run) for run in cell.runs],
        "repeat": result.directory.command_of(cell, result.progress.stack) if violated else None,
        "repeat_was_run": cell.alone and not cell.together if violated else None,
    }
