"""Report ``tap``: Test Anything Protocol, for tools that read neither JUnit nor JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from onceproof.reports.report import RunSet, ScenarioResult, reports


@reports.register("tap")
class TapReport:
    about: ClassVar[str] = "Test Anything Protocol, one line per scenario"

    def render(self, runs: RunSet) -> str:
        lines = ["TAP version 13", f"1..{len(runs.results)}"]
        for number, result in enumerate(runs.results, 1):
            passed = "ok" if runs.passed(result) else "not ok"
            lines += [f"{passed} {number} - {result.scenario}: {result.outcome.value}", *_diagnostics(result)]
        return "\n".join([*lines, ""])


def _diagnostics(result: ScenarioResult) -> Iterator[str]:
    """The findings, or the error that prevented a verdict, as comments."""
    if result.error is not None:
        yield f"# {result.error.message.splitlines()[0]}"
    elif result.verdict is not None:
        for finding in result.verdict.findings:
            yield f"# {finding.anomaly} in {finding.output}: {finding.summary}"
