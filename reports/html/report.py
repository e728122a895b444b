"""HTML for people: the page about a run, or about all runs of one command."""

from __future__ import annotations

from typing import ClassVar

from onceproof.base.errors import OnceproofError
from onceproof.reports.report import RunSet, ScenarioResult, reports


@reports.register("html")
class HtmlReport:
    """One page per command. One scenario with a run directory: the page that is also in that directory. Otherwise an index."""

    about: ClassVar[str] = "one self-contained HTML page"

    def render(self, runs: RunSet) -> str:
        from onceproof.reports.html.page import render
        from onceproof.reports.html.run_page import SYMBOLS, of_run

        (result, *others) = runs.results
        if not others and result.run_dir is not None:
            try:
                return of_run(result.run_dir)
            except OnceproofError:  # it cannot be read any more: the verdict in memory still can
                pass
        return render(
            "index.html",
            title=f"{runs.outcome().value}: {len(runs.results)} scenarios",
            outcome=runs.outcome().value,
            symbol=SYMBOLS[runs.outcome()],
            rows=[(each, SYMBOLS[each.outcome], _why(each), runs.passed(each)) for each in runs.results],
            by_expectation=runs.by_expectation,
            passed=sum(runs.passed(each) for each in runs.results),
        )


def _why(result: ScenarioResult) -> str:
    if result.error is not None:
        return result.error.message
    return result.verdict.reasons[0] if result.verdict is not None and result.verdict.reasons else "no verdict"
