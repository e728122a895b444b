"""The page about several runs: the result of all of them, a row for each, and a section for each with its findings in short."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onceproof.reports.brief import brief
from onceproof.reports.comparison import faults_of
from onceproof.reports.html.findings import views
from onceproof.reports.html.limits import Limits, Some, some
from onceproof.reports.html.page import render_capped
from onceproof.reports.html.run_page import SYMBOLS, claims
from onceproof.reports.report import RunSet, ScenarioResult
from onceproof.scenario.model import ExpectedVerdict

_MOST_FINDINGS = 10
#: Of one section.
_LIMITS = Limits(findings=_MOST_FINDINGS, witnesses=1, text=1_000, items=20)


@dataclass(frozen=True)
class _Size:
    rows: int
    sections: int
    text: int
    """Characters of any text."""


#: The page is rendered with the first of them with which it is small enough. The last one is so for any runs.
_SIZES = (_Size(500, 500, 1_000), _Size(500, 100, 500), _Size(500, 20, 250), _Size(500, 0, 100), _Size(100, 0, 50))


def results(directories: list[Path]) -> tuple[RunSet, dict[Path, tuple[str, ...]]]:
    """What `page` takes. Only ``run.json`` and ``verdict.json`` of each run are read, as far as they can be."""
    found = [brief(path) for path in directories]
    runs = RunSet(tuple(ScenarioResult(one.name, ExpectedVerdict(), one.verdict, one.path) for one in found))
    return runs, {one.path: one.notes if one.verdict is not None else (one.why,) for one in found}


def page(runs: RunSet, notes: Mapping[Path, tuple[str, ...]] = MappingProxyType({})) -> str:
    """``notes``: run directory -> what could not be read of it."""
    return render_capped("index.html", ((size.text, _values(runs, notes, size)) for size in _SIZES))


def _values(runs: RunSet, notes: Mapping[Path, tuple[str, ...]], size: _Size) -> dict[str, Any]:
    """What the template shows."""
    anchors = {number: f"run-{number + 1}" for number in range(size.sections)}
    return {
        "title": f"{runs.outcome().value}: {len(runs.results)} runs",
        "outcome": runs.outcome().value,
        "symbol": SYMBOLS[runs.outcome()],
        "rows": [
            {
                **_head(anchors.get(number), each),
                "why": _why(each, notes),
                "broken": some(() if each.verdict is None else each.verdict.anomalies().items(), _MOST_FINDINGS),
                "hits": _hits(each),
                "passed": runs.passed(each),
            }
            for number, each in enumerate(runs.results[: size.rows])
        ],
        "total": len(runs.results),
        # One after the other, so that only those exist which fit.
        "sections": (_section(anchors[n], each, notes) for n, each in enumerate(runs.results[: size.sections])),
        "sectioned": min(size.sections, len(runs.results)),
        "by_expectation": runs.by_expectation,
        "passed": sum(runs.passed(each) for each in runs.results),
    }


def _head(anchor: str | None, result: ScenarioResult) -> dict[str, Any]:
    """What a run's row and its section both show. ``anchor``: the id of the section, if it has one."""
    return {"anchor": anchor, "result": result, "symbol": SYMBOLS[result.outcome], "word": _word(result)}


def _section(anchor: str, result: ScenarioResult, notes: Mapping[Path, tuple[str, ...]]) -> dict[str, Any]:
    verdict, run = result.verdict, result.run_dir
    return _head(anchor, result) | {
        "reasons": some(() if verdict is None else verdict.reasons, 5),
        "claimed": some(() if verdict is None else claims(verdict.claim), _LIMITS.items),
        "faults": some(faults_of(verdict).items(), _LIMITS.items),
        "findings": Some((), 0) if verdict is None or run is None else views(verdict, (), run, _LIMITS),
        "notes": _notes(result, notes),
        "command": None if run is None else f"onceproof report {shlex.quote(str(run))} --open",
    }


def _notes(result: ScenarioResult, notes: Mapping[Path, tuple[str, ...]]) -> tuple[str, ...]:
    return () if result.run_dir is None else notes.get(result.run_dir, ())


def _word(result: ScenarioResult) -> str:
    if result.error is not None:
        return result.outcome.value
    return "no verdict" if result.verdict is None else result.verdict.word


def _why(result: ScenarioResult, notes: Mapping[Path, tuple[str, ...]]) -> str:
    if result.error is not None:
        return result.error.message
    if result.verdict is not None and result.verdict.reasons:
        return result.verdict.reasons[0]
    return "; ".join(_notes(result, notes)) or "no verdict"


def _hits(result: ScenarioResult) -> str:
    faults = () if result.verdict is None else result.verdict.faults
    return f"{sum(fault.hit for fault in faults)} of {len(faults)}" if faults else "none"
