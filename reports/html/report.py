"""HTML for people: the page about a run, or about all runs of one command."""

from __future__ import annotations

from typing import ClassVar

from onceproof.base.errors import OnceproofError
from onceproof.reports.report import RunSet, reports


@reports.register("html")
class HtmlReport:
    """One page per command. One scenario with a run directory: the page that is also in that directory. Otherwise an index."""

    about: ClassVar[str] = "one self-contained HTML page"

    def render(self, runs: RunSet) -> str:
        from onceproof.reports.html.index_page import page
        from onceproof.reports.html.run_page import of_run

        (result, *others) = runs.results
        if not others and result.run_dir is not None:
            try:
                return of_run(result.run_dir)
            except OnceproofError:  # it cannot be read any more: the verdict in memory still can
                pass
        return page(runs)
