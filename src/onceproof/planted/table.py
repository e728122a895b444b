"""The results of a selftest for people: the table on the terminal, and its cells for the docs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.table import Table
from rich.text import Text

from onceproof.base.visible import visible
from onceproof.base.words import times
from onceproof.planted.catalogue import Bug
from onceproof.planted.match import in_words
from onceproof.planted.results import Attempt, BugResult, Results
from onceproof.reports.page import Look, Page

HEAD = ("planted bug", "fault", "must show", "caught", "without the fault", "remedy")


def cells(bug: Bug, result: BugResult | None) -> tuple[str, ...]:
    """One row, under `HEAD`."""
    must = f"{bug.anomaly}, {batches(bug)}"
    if result is None:
        return bug.name, bug.fault, must, "not run", "not run", "not run"
    caught = f"{result.caught} of {len(result.attempts)}" if result.attempts else "not run"
    vacuity = "-" if bug.shows_without_fault else _quiet(result.vacuity)
    return bug.name, bug.fault, must, caught, vacuity, _held(result.control)


def batches(bug: Bug) -> str:
    return in_words(bug.batches, "no batch")


def problems(result: BugResult) -> Iterable[tuple[str, Attempt]]:
    """Each run that did not show what it should, and what it was for."""
    yield from (("not caught", each) for each in result.attempts if not each.passed)
    if result.vacuity is not None and not result.vacuity.passed:
        yield "without the fault", result.vacuity
    if result.control is not None and not result.control.passed:
        yield "the remedy", result.control


def line(name: str, result: BugResult) -> str:
    """One line for the log of a selftest."""
    wrong = [f"{what}: {each.why}" for what, each in problems(result)]
    found = [each.why for each in result.attempts[:1]]
    return f"{name}: {'as named' if result.passed else 'NOT AS NAMED'}{''.join(f'; {why}' for why in wrong or found)}"


def as_text(bugs: Mapping[str, Bug], results: Results, look: Look) -> str:
    """The table, then what is wrong, then one line with the numbers."""
    page = Page(look)
    page.rule()
    table = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    for column in HEAD:
        table.add_column(column, overflow="fold")
    for name, result in results.items():
        first, *rest = cells(bugs[name], result)
        table.add_row(Text(first, style="green" if result.passed else "bold red"), *rest)
    page.below(table, 0)
    for name, result in results.items():
        for what, each in problems(result):
            page.blank()
            page.below(visible(f"{name}, {what}: {each.why}"), 0)
            if each.run:
                page.unbroken("run", visible(each.run))
    page.blank()
    page.line("selftest", summary(results))
    return page.text()


def summary(results: Results) -> str:
    """``24 of 25 planted bugs caught; 10 remedies held; 12 quiet without their fault``"""
    tried = [result for result in results.values() if result.attempts]
    caught = sum(result.caught == len(result.attempts) for result in tried)
    parts = [f"{caught} of {times(len(tried), 'planted bug')} caught"] if tried else []
    controls = [result.control for result in results.values() if result.control is not None]
    quiet = [result.vacuity for result in results.values() if result.vacuity is not None]
    if controls:
        parts.append(f"{sum(each.passed for each in controls)} of {len(controls)} held with their remedy")
    if quiet:
        parts.append(f"{sum(each.passed for each in quiet)} of {len(quiet)} quiet without their fault")
    return "; ".join(parts)


def listing(bugs: Iterable[Bug], look: Look) -> str:
    """Each bug with what it is and what must catch it."""
    page = Page(look)
    for bug in bugs:
        page.below(Text(bug.name, style="bold"), 0)
        page.line("wrong", bug.wrong)
        page.line("belief", bug.belief)
        page.line("shows", f"{bug.anomaly}, {batches(bug)}; fault: {bug.fault}")
    return page.text()


def _quiet(result: Attempt | None) -> str:
    if result is None:
        return "not run"
    return result.outcome if result.passed else f"the same: {result.outcome}"


def _held(result: Attempt | None) -> str:
    return "not run" if result is None else result.outcome
