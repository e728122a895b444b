"""Compares two runs, or two qualifications: what is new, what is gone, what changed. A value, with a text and JSON of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from onceproof.history.run_record import BuiltComponent, RunRecord
from onceproof.judge.findings import FaultReport, Finding, Outcome, Verdict
from onceproof.reports.brief import Brief

#: Differences of durations below this are noise of one machine.
_NOISE_S = 1.0


class Kind(StrEnum):
    NEW = "new"
    GONE = "gone"
    CHANGED = "changed"
    SAME = "same"


class Trend(StrEnum):
    WORSE = "worse"
    BETTER = "better"
    NONE = ""
    """Equal, or neither: a count, a version, or a cell that only one side has."""


def trend(old: float | None, new: float | None) -> Trend:
    """How an item changed that is the worse the higher its number is. None: nothing can be said of that side."""
    if old is None or new is None or old == new:
        return Trend.NONE
    return Trend.WORSE if new > old else Trend.BETTER


@dataclass(frozen=True)
class Row:
    """One item and its values before and after, as text; None if it is missing on that side."""

    name: str
    old: str | None
    new: str | None
    trend: Trend = Trend.NONE

    @property
    def kind(self) -> Kind:
        if self.old == self.new:
            return Kind.SAME
        return Kind.NEW if self.old is None else Kind.GONE if self.new is None else Kind.CHANGED


@dataclass(frozen=True)
class Section:
    title: str
    rows: tuple[Row, ...]

    @property
    def changes(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.kind is not Kind.SAME)


@dataclass(frozen=True)
class Side:
    path: str
    name: str
    """The name of the scenario."""
    outcome: Outcome | None
    word: str


@dataclass(frozen=True)
class Comparison:
    old: Side
    new: Side
    statement: str
    sections: tuple[Section, ...]
    cautions: tuple[str, ...] = ()
    """Why a difference may say nothing about the job."""

    def to_json(self) -> dict[str, Any]:
        sections = {
            section.title: [{**asdict(row), "kind": row.kind.value} for row in section.rows]
            for section in self.sections
        }
        return {
            "statement": self.statement,
            "old": asdict(self.old),
            "new": asdict(self.new),
            "cautions": list(self.cautions),
            "sections": sections,
        }

    def as_text(self) -> str:
        """All changes, one line each, with the number of equal rows."""
        lines = [self.statement, f"old: {self.old.word}  {self.old.path}", f"new: {self.new.word}  {self.new.path}"]
        lines += [f"caution: {caution}" for caution in self.cautions]
        for section in self.sections:
            same = len(section.rows) - len(section.changes)
            lines += ["", f"{section.title}: {len(section.changes)} changed, {same} the same"]
            for row in section.changes:
                trend = f" ({row.trend})" if row.trend else ""
                lines.append(f"  {row.kind:<8} {row.name}: {row.old or 'none'} -> {row.new or 'none'}{trend}")
        return "\n".join(lines)


def compare_runs(old: Brief, new: Brief) -> Comparison:
    first, second = (Side(str(run.path), run.name, run.outcome, run.word) for run in (old, new))
    findings = Section("findings", tuple(_finding_rows(old.verdict, new.verdict)))
    faults = Section("faults", tuple(_fault_rows(old.verdict, new.verdict)))
    counts = Section("counts", tuple(_rows(_counts(old.verdict), _counts(new.verdict))))
    about = Section("conditions", tuple(_rows(_conditions(old), _conditions(new))))
    cautions = [f"the {row.name} differs: {row.old} and {row.new}" for row in about.changes if _must_equal(row.name)]
    if _chaos(old.record) != _chaos(new.record):
        cautions.append("the scenarios have different faults")
    return Comparison(
        first, second, statement(first, second, findings), (findings, faults, counts, about), tuple(cautions)
    )


def _chaos(record: RunRecord) -> str:
    """The faults of the scenario, without what the names on an external stack begin with: it differs from run to run."""
    stack = record.scenario.stack
    prefix = stack.get("prefix") if isinstance(stack, dict) else None
    faults = json.dumps(record.scenario.chaos or [], sort_keys=True, default=str)
    return faults.replace(prefix, "") if isinstance(prefix, str) and prefix else faults


def statement(old: Side, new: Side, findings: Section) -> str:
    """The comparison in one sentence."""
    kinds = [row.kind for row in findings.changes]
    if not findings.rows:
        return f"{_words(old, new)}; no {findings.title} in either"
    parts = [f"{kinds.count(kind)} {kind}" for kind in (Kind.NEW, Kind.GONE, Kind.CHANGED) if kinds.count(kind)]
    of = f"{findings.title}: {', '.join(parts)}" if parts else f"the {findings.title} are the same"
    trends = [row.trend for row in findings.changes]
    judged = ", ".join(f"{trends.count(one)} {one}" for one in (Trend.WORSE, Trend.BETTER) if one in trends)
    return f"{_words(old, new)}; {of}{f' ({judged})' if judged else ''}"


def _words(old: Side, new: Side) -> str:
    return f"{old.word} as before" if old.word == new.word else f"{old.word} before, {new.word} now"


_MUST_EQUAL = ("scenario", "seed", "claim")


def _must_equal(condition: str) -> bool:
    return condition in _MUST_EQUAL or condition.startswith("claim of ")


def _rows(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Row]:
    for name in dict.fromkeys((*new, *old)):
        yield Row(name, old.get(name), new.get(name))


def _finding_rows(old: Verdict | None, new: Verdict | None) -> Iterator[Row]:
    before, after = _findings(old), _findings(new)
    for row in _rows(
        *({name: f"{one.total:,}, {_state(one)}" for name, one in side.items()} for side in (before, after))
    ):
        broken = [_broken(verdict, side.get(row.name), row.name) for verdict, side in ((old, before), (new, after))]
        yield replace(row, trend=trend(*broken))


def _broken(verdict: Verdict | None, finding: Finding | None, name: str) -> int | None:
    """How many rows of a finding break the claim; None if that is not known, because the run was not judged for it."""
    if finding is not None:
        return finding.total if finding.violates else 0
    if verdict is None or verdict.outcome not in (Outcome.HELD, Outcome.VIOLATED):
        return None
    anomaly = name.partition(" ")[0]
    return None if any(each.partition("@")[0] == anomaly for each in verdict.not_evaluated) else 0


def _fault_rows(old: Verdict | None, new: Verdict | None) -> Iterator[Row]:
    missed = {"hit": 0, "not hit": 1}
    for row in _rows(faults_of(old), faults_of(new)):
        yield replace(row, trend=trend(missed.get(row.old or ""), missed.get(row.new or "")))


def _findings(verdict: Verdict | None) -> dict[str, Finding]:
    found: dict[str, Finding] = {}
    for finding in () if verdict is None else verdict.findings:
        source = f" ({finding.source})" if finding.source is not None else ""
        transient = ", transient" if finding.transient else ""
        found[f"{finding.anomaly} in {finding.output}{source}{transient}"] = finding
    return found


def _state(finding: Finding) -> str:
    return "breaks the claim" if finding.violates else "allowed" if finding.allowed is not None else "undecided"


def faults_of(verdict: Verdict | None) -> dict[str, str]:
    """``1 crash driver, batch 2 at after-sink-commit`` -> ``hit`` or ``not hit``."""
    faults = () if verdict is None else verdict.faults
    return {f"{number} {name_of(fault)}": "hit" if fault.hit else "not hit" for number, fault in enumerate(faults, 1)}


def state(*, armed: bool, fired: bool, hit: bool) -> str:
    """How far a fault got, in words."""
    return "hit" if hit else "fired, not hit" if fired else "armed, never fired" if armed else "never armed"


def name_of(fault: FaultReport) -> str:
    """``crash driver, batch 2 at after-sink-commit``"""
    batch = "" if fault.batch is None else f", batch {fault.batch}"
    return f"{fault.fault} {fault.target}{batch}{'' if fault.point is None else f' at {fault.point}'}"


def _counts(verdict: Verdict | None) -> dict[str, str]:
    return {} if verdict is None else {name: f"{count:,}" for name, count in verdict.counts.items()}


def _conditions(run: Brief) -> dict[str, str]:
    record = run.record
    conditions = {"scenario": record.scenario.name or "unknown"}
    if run.verdict is not None:
        for output, promises in run.verdict.claim.each():
            name = f"claim of {output}" if output else "claim"
            conditions[name] = ", ".join(f"{promise} {level}" for promise, level in promises.items())
    if record.seed is not None:
        conditions["seed"] = str(record.seed)
    conditions["duration"] = f"{round(record.seconds / _NOISE_S) * _NOISE_S:.0f} s"
    conditions["onceproof"] = record.onceproof or "unknown"
    for name, version in sorted((record.versions or {}).items()):
        shown = version.version if isinstance(version, BuiltComponent) else version
        conditions[name] = shown or "unknown"
    return conditions
