"""The findings of a verdict as a report shows them: each witness with its rows side by side, its input and its fault."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from onceproof.judge.findings import Finding, Verdict, Witness
from onceproof.judge.shown_rows import InputRecord, ShownRow, ShownRows
from onceproof.judge.slices.cut import name_of
from onceproof.judge.witness_files import FOLDER

#: Findings, witnesses of one finding, columns of one row, and characters of one text that a page shows.
MOST_FINDINGS, MOST_WITNESSES, MOST_COLUMNS, MOST_TEXT = 40, 12, 40, 240
#: Characters of all witnesses after the first ones. Whatever the run, the page stays small.
_ROOM = 250_000
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
    columns: tuple[str, ...]
    more_columns: int
    lines: tuple[Line, ...]
    faults: tuple[int, ...]
    """Numbers of the faults that were placed in its batch, from 1."""

    @property
    def size(self) -> int:
        """About how many characters it takes on the page."""
        cells = sum(len(cell.text) + 40 for line in self.lines for cell in line.cells)
        quoted = 0 if self.input is None else len(self.input.key or "") + len(self.input.value or "")
        return 1000 + len(self.name) + sum(map(len, (*self.argument, *self.positions))) + cells + quoted


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
    attribution: tuple[tuple[str, int], ...]
    witnesses: tuple[WitnessView, ...]
    hidden: int
    """Effects that are not shown here."""
    file: str | None
    """The file with all witnesses, relative to the run."""
    slice: str | None


def views(verdict: Verdict, rows: Iterable[ShownRows], run_dir: Path) -> tuple[FindingView, ...]:
    """The first `MOST_FINDINGS` findings; those that violate the claim come first, as in the verdict."""
    by_identity = {(one.output, _key(one.identity)): one for one in rows}
    room, made = _ROOM, []
    for number, finding in enumerate(verdict.findings[:MOST_FINDINGS], 1):
        view, room = _view(number, finding, verdict, by_identity, run_dir, room)
        made.append(view)
    return tuple(made)


def _view(
    number: int,
    finding: Finding,
    verdict: Verdict,
    rows: dict[tuple[str, str], ShownRows],
    run_dir: Path,
    room: int,
) -> tuple[FindingView, int]:
    """The finding, and how much room it leaves."""
    state = "violates" if finding.violates else "allowed" if finding.allowed is not None else "undecided"
    shown: list[WitnessView] = []
    for witness in finding.witnesses[: MOST_WITNESSES if state == "violates" else 3]:
        view = _witness(witness, rows.get((finding.output, _key(witness.identity))), verdict)
        room -= view.size
        if shown and room < 0:
            break
        shown.append(view)
    slice_ = verdict.slices.get(name_of(finding))
    file, labels = finding.witness_file, finding.attribution
    found = FindingView(
        anchor=f"finding-{number}",
        anomaly=finding.anomaly,
        output=finding.output,
        title=f"{finding.summary}{' (transient)' if finding.transient else ''}",
        state=state,
        why=finding.allowed if finding.allowed is not None else finding.undecided,
        total=finding.total,
        attribution=tuple(
            sorted(labels.items(), key=lambda one: (-one[1], one[0]))[:20]
            if len(labels) > 1 or not any(label in finding.summary for label in labels)  # otherwise the title says it
            else ()
        ),
        witnesses=tuple(shown),
        hidden=max(finding.total - len(shown), 0),
        file=file if file is not None and _SAFE_FILE.fullmatch(file) else None,
        slice=None if slice_ is None else str(run_dir / slice_),
    )
    return found, room


def _witness(witness: Witness, rows: ShownRows | None, verdict: Verdict) -> WitnessView:
    names = tuple(dict.fromkeys(name for row in (*rows.expected, *rows.found) for name in row.content)) if rows else ()
    columns = names[:MOST_COLUMNS]
    faults = tuple(
        number
        for number, fault in enumerate(verdict.faults, 1)
        if witness.batch is not None and fault.batch == witness.batch
    )
    return WitnessView(
        name=short(", ".join(f"{column}={value}" for column, value in witness.identity.items()) or "(no identity)"),
        argument=tuple(short(line, 1000) for line in witness.argument.splitlines()[:10]),
        cause=witness.cause,
        input=None if rows is None else rows.input,
        batch=witness.batch,
        positions=tuple(short(position) for position in witness.positions[:6]),
        columns=columns,
        more_columns=len(names) - len(columns),
        lines=() if rows is None else tuple(_lines(rows, columns)),
        faults=faults,
    )


def _lines(rows: ShownRows, columns: tuple[str, ...]) -> Iterator[Line]:
    unequal = sum(row.count for row in rows.expected) != sum(row.count for row in rows.found)
    for side, own, other in (("expected", rows.expected, rows.found), ("found", rows.found, rows.expected)):
        for row in own:
            cells = tuple(Cell(_text(row, name), _differs(row, name, other)) for name in columns)
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
    return "null" if value is None else short(value if isinstance(value, str) else json.dumps(value, default=str))


def short(text: str, most: int = MOST_TEXT) -> str:
    return text if len(text) <= most else f"{text[:most]}\u2026"


def _key(identity: object) -> str:
    return json.dumps(identity, sort_keys=True, default=str)
