"""The page about several runs: the result of all of them, a row for each, and a section for each with its findings in short."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from onceproof.reports.brief import brief
from onceproof.reports.comparison import faults_of
from onceproof.reports.html.findings import FindingView, views
from onceproof.reports.html.limits import Limits, short, some
from onceproof.reports.html.page import render
from onceproof.reports.html.run_page import SYMBOLS, claims
from onceproof.reports.report import RunSet, ScenarioResult
from onceproof.scenario.model import ExpectedVerdict

#: Runs with a row; faults of one section; characters of all sections after the first one. Whatever the runs, the page stays small.
_MOST_RUNS, _MOST_FAULTS, _ROOM = 500, 20, 400_000
#: Of one section.
_LIMITS = Limits(findings=10, witnesses=1)


@dataclass(frozen=True)
class Row:
    anchor: str | None
    """The id of its section, if it has one."""
    result: ScenarioResult
    symbol: str
    word: str
    why: str
    broken: list[tuple[str, int]]
    hits: str
    passed: bool


@dataclass(frozen=True)
class Section:
    anchor: str
    result: ScenarioResult
    symbol: str
    word: str
    reasons: tuple[str, ...]
    claimed: tuple[str, ...]
    faults: tuple[tuple[str, str], ...]
    """(its name, whether it hit)"""
    findings: tuple[FindingView, ...]
    """With one witness each."""
    hidden: int
    """Findings that are only on the page of the run."""
    notes: tuple[str, ...]
    command: str | None
    """Writes and opens the page of the run."""

    @property
    def size(self) -> int:
        """About how many characters it takes on the page."""
        witnesses = [witness for finding in self.findings for witness in finding.witnesses]
        texts = [*self.reasons, *self.claimed, *self.notes, *(name for name, _ in self.faults)]
        texts += [line for witness in witnesses for line in (witness.name, *witness.argument)]
        texts += [finding.title for finding in self.findings]
        return 1500 + 400 * len(self.findings) + sum(map(len, texts))


def results(directories: list[Path]) -> tuple[RunSet, dict[Path, tuple[str, ...]]]:
    """What `page` takes. Only ``run.json`` and ``verdict.json`` of each run are read, as far as they can be."""
    found = [brief(path) for path in directories]
    runs = RunSet(tuple(ScenarioResult(one.name, ExpectedVerdict(), one.verdict, one.path) for one in found))
    return runs, {one.path: one.notes if one.verdict is not None else (one.why,) for one in found}


def page(runs: RunSet, notes: Mapping[Path, tuple[str, ...]] = MappingProxyType({})) -> str:
    """``notes``: run directory -> what could not be read of it."""
    shown = runs.results[:_MOST_RUNS]
    sections = {section.anchor: section for section in _sections(shown, notes)}
    names = [f"run-{number}" for number in range(1, len(shown) + 1)]
    return render(
        "index.html",
        title=f"{runs.outcome().value}: {len(runs.results)} runs",
        outcome=runs.outcome().value,
        symbol=SYMBOLS[runs.outcome()],
        rows=[
            Row(
                name if name in sections else None,
                each,
                SYMBOLS[each.outcome],
                _word(each),
                short(_why(each, notes), 600),
                _broken(each),
                _hits(each),
                runs.passed(each),
            )
            for name, each in zip(names, shown, strict=True)
        ],
        total=len(runs.results),
        sections=list(sections.values()),
        by_expectation=runs.by_expectation,
        passed=sum(runs.passed(each) for each in runs.results),
    )


def _sections(results: tuple[ScenarioResult, ...], notes: Mapping[Path, tuple[str, ...]]) -> Iterator[Section]:
    room = _ROOM
    for number, result in enumerate(results, 1):
        section = _section(f"run-{number}", result, _notes(result, notes))
        room -= section.size
        if room >= 0 or number == 1:
            yield section


def _section(anchor: str, result: ScenarioResult, notes: tuple[str, ...]) -> Section:
    verdict, run = result.verdict, result.run_dir
    found = some((), 0) if verdict is None or run is None else views(verdict, (), run, _LIMITS)
    return Section(
        anchor=anchor,
        result=result,
        symbol=SYMBOLS[result.outcome],
        word=_word(result),
        reasons=tuple(short(reason, 1000) for reason in (() if verdict is None else verdict.reasons[:5])),
        claimed=() if verdict is None else tuple(short(claim, 1000) for claim in claims(verdict.claim))[:20],
        faults=tuple((short(name), hit) for name, hit in faults_of(verdict).items())[:_MOST_FAULTS],
        findings=found.shown,
        hidden=found.more,
        notes=tuple(short(note) for note in notes),
        command=None if run is None else f"onceproof report {shlex.quote(str(run))} --open",
    )


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


def _broken(result: ScenarioResult) -> list[tuple[str, int]]:
    return [] if result.verdict is None else list(result.verdict.anomalies().items())[: _LIMITS.findings]


def _hits(result: ScenarioResult) -> str:
    faults = () if result.verdict is None else result.verdict.faults
    return f"{sum(fault.hit for fault in faults)} of {len(faults)}" if faults else "none"
