"""The findings of a verdict as a report shows them: each witness with its rows side by side, its input and its fault."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from onceproof.base.words import times
from onceproof.judge.findings import Finding, Verdict, Witness
from onceproof.judge.shown_rows import InputRecord, ShownRow, ShownRows
from onceproof.judge.slices.cut import name_of
from onceproof.judge.witness_files import FOLDER
from onceproof.reports.html.limits import Limits, Some, short, some

#: Of a finding that the claim allows, or that is undecided, fewer witnesses are shown. Lines and characters of one argument.
_ALLOWED, _LINES, _ARGUMENT = 3, 10, 1_000
_LABELS, MOST_POSITIONS = 20, 6
_SAFE_FILE = re.compile(rf"{FOLDER}/[\w][\w.-]*\.jsonl")


@dataclass(frozen=True)
class Cell:
    text: str
    differs: bool = False


@dataclass(frozen=True)
class Line:
    """One row of the comparison."""

    side: str
    """``expected`` or ``found``"""
    count: Cell
    cells: tuple[Cell, ...]
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class WitnessView:
    name: str
    argument: tuple[str, ...]
    cause: str | None
    input: InputRecord | None
    batch: int | None
    positions: tuple[str, ...]
    columns: Some[str]
    lines: tuple[Line, ...]
    more_lines: int
    faults: tuple[int, ...]
    """Numbers of the faults on the page that were placed in its batch, from 1."""

    @property
    def differs(self) -> bool:
        """Whether a value or a count is marked as different."""
        return any(line.count.differs or any(cell.differs for cell in line.cells) for line in self.lines)


@dataclass(frozen=True)
class FindingView:
    anchor: str
    anomaly: str
    output: str
    title: str
    state: str
    """``violates``, ``undecided`` or ``allowed``"""
    why: str | None
    total: int
    attribution: Some[tuple[str, int]]
    witnesses: tuple[WitnessView, ...]
    hidden: int
    """Effects that are not shown here."""
    stored: int
    """Witnesses in ``verdict.json``."""
    file: str | None
    """The file with all witnesses, relative to the run."""
    slice: str | None


def views(verdict: Verdict, rows: Iterable[ShownRows], run_dir: Path, limits: Limits) -> Some[FindingView]:
    """The first findings; those that violate the claim come first, as in the verdict."""
    by_identity = {(one.output, _key(one.identity)): one for one in rows}
    chosen = some(verdict.findings, limits.findings)
    shown = (_view(n, one, verdict, by_identity, run_dir, limits) for n, one in enumerate(chosen.shown, 1))
    return Some(tuple(shown), chosen.more)


def _view(
    number: int,
    finding: Finding,
    verdict: Verdict,
    rows: dict[tuple[str, str], ShownRows],
    run_dir: Path,
    limits: Limits,
) -> FindingView:
    state = "violates" if finding.violates else "allowed" if finding.allowed is not None else "undecided"
    most = limits.witnesses if state == "violates" else min(limits.witnesses, _ALLOWED)
    shown = tuple(
        _witness(witness, rows.get((finding.output, _key(witness.identity))), verdict, limits)
        for witness in finding.witnesses[:most]
    )
    slice_ = verdict.slices.get(name_of(finding))
    labels = sorted(finding.attribution.items(), key=lambda one: (-one[1], one[0]))
    if len(labels) == 1 and labels[0][0] in finding.summary:  # the title says it
        labels = []
    return FindingView(
        anchor=f"finding-{number}",
        anomaly=finding.anomaly,
        output=finding.output,
        title=f"{finding.summary}{' (transient)' if finding.transient else ''}",
        state=state,
        why=finding.allowed if finding.allowed is not None else finding.undecided,
        total=finding.total,
        attribution=some(labels, min(_LABELS, limits.items)),
        witnesses=shown,
        hidden=max(finding.total - len(shown), 0),
        stored=len(finding.witnesses),
        file=_file(finding.witness_file),
        slice=None if slice_ is None else str(run_dir / slice_),
    )


def _file(name: str | None) -> str | None:
    """The file with all witnesses, if that is a name that onceproof gives: not one that leads elsewhere, or is endless."""
    return name if name is not None and _SAFE_FILE.fullmatch(name) and len(os.fsencode(name)) <= 255 else None


def _witness(witness: Witness, rows: ShownRows | None, verdict: Verdict, limits: Limits) -> WitnessView:
    names = tuple(dict.fromkeys(name for row in (*rows.expected, *rows.found) for name in row.content)) if rows else ()
    columns = some(names, limits.columns)
    faults = tuple(
        number
        for number, fault in enumerate(verdict.faults[: limits.items], 1)
        if witness.batch is not None and fault.batch == witness.batch
    )
    identity = ", ".join(f"{column}={value}" for column, value in witness.identity.items()) or "(no identity)"
    lines = witness.argument.splitlines()
    argument = lines if len(lines) <= _LINES else [*lines[:_LINES], f"({times(len(lines) - _LINES, 'more line')})"]
    return WitnessView(
        name=short(identity, limits.cell),
        argument=tuple(short(line, min(_ARGUMENT, limits.text)) for line in argument),
        cause=witness.cause,
        input=None if rows is None else rows.input,
        batch=witness.batch,
        positions=tuple(short(position, limits.cell) for position in witness.positions),
        columns=columns,
        lines=() if rows is None else tuple(_lines(rows, columns.shown, limits)),
        more_lines=0 if rows is None else sum(max(len(one) - limits.rows, 0) for one in (rows.expected, rows.found)),
        faults=faults,
    )


def _lines(rows: ShownRows, columns: tuple[str, ...], limits: Limits) -> Iterator[Line]:
    unequal = sum(row.count for row in rows.expected) != sum(row.count for row in rows.found)
    for side, own, other in (("expected", rows.expected, rows.found), ("found", rows.found, rows.expected)):
        for row in own[: limits.rows]:
            cells = tuple(Cell(short(_text(row, name), limits.cell), _differs(row, name, other)) for name in columns)
            yield Line(side, Cell(f"{row.count:,}", unequal), cells, row.places)
        if not own:
            yield Line(side, Cell("0", True), ())


def _differs(row: ShownRow, name: str, other: tuple[ShownRow, ...]) -> bool:
    """Whether the rows of the other side exist, and none has this value in this column."""
    value = row.content.get(name)
    return bool(other) and all(name not in one.content or one.content[name] != value for one in other)


def _text(row: ShownRow, name: str) -> str:
    if name not in row.content:
        return "(no such column)"
    value = row.content[name]
    return "null" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def _key(identity: object) -> str:
    return json.dumps(identity, sort_keys=True, default=str)
