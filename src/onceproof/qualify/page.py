"""The HTML page about a qualification: its matrix as a heat map, and for each cell what was seen and how to repeat it."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from onceproof.base.duration import clock
from onceproof.base.errors import OnceproofError
from onceproof.base.words import times
from onceproof.history import run_files
from onceproof.history.run_record import FILE as RECORD
from onceproof.history.run_record import RunRecord
from onceproof.judge.findings import VERDICT_FILE, Outcome, Verdict
from onceproof.qualify.cells import Cell, kinds
from onceproof.qualify.directory import Directory, QualificationProgress
from onceproof.qualify.strongest import promises
from onceproof.reports import fixes
from onceproof.reports.comparison import Comparison, Row, Section, Side, statement, trend
from onceproof.reports.html.files import FILE as PAGE
from onceproof.reports.html.limits import Some, some
from onceproof.reports.html.page import render_capped
from onceproof.reports.html.run_page import SYMBOLS, claims
from onceproof.scenario.points import LEFT_BEHIND, Point

#: A run directory and a cell's file, below the directory of the qualification. Other names may lead out of it.
_RUN, _CELL = re.compile(r"runs/[\w][\w.-]*"), re.compile(r"[\w][\w.-]*")


#: A longer name of a cell is not used as the id of its section: texts are cut off, and would no longer be unique.
_ANCHOR = 90


@dataclass(frozen=True)
class _Size:
    cells: int
    text: int
    """Characters of any text."""
    items: int
    """Entries of each list of a cell."""


#: The page is rendered with the first of them with which it is small enough. The last one is so for any qualification.
_SIZES = (_Size(1_000, 4_000, 100), _Size(300, 500, 20), _Size(100, 200, 8), _Size(20, 100, 4))


@dataclass(frozen=True)
class ShownCell:
    """One cell on the page."""

    cell: Cell
    anchor: str
    result: str
    """A class of the style, and a choice of the filter: a verdict, ``undecided`` or ``n/a``."""
    symbol: str
    words: str
    command: str | None
    runs: tuple[tuple[str, bool], ...]
    """(run directory, below that of the qualification; whether it has a report)"""
    fixes: tuple[str, ...] = ()

    @property
    def tries(self) -> int:
        return self.cell.tries


@dataclass(frozen=True)
class Heat:
    """The matrix of one query, or (None) of the cells that name no query."""

    query: str | None
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Some[ShownCell], ...]], ...]
    """(point, for each column its cells); ``more`` are those that the page only counts."""

    @property
    def counted(self) -> int:
        return sum(field.more for _, fields in self.rows for field in fields)


def write(path: Path) -> Path:
    """Write the page into the directory of the qualification. Raises as `Directory.open`, and `OSError`."""
    run_files.write_text(path / PAGE, page(*Directory.open(path)))
    return path / PAGE


def page(directory: Directory, progress: QualificationProgress) -> str:
    """The page, with at most `onceproof.reports.html.limits.MOST_BYTES`. Violated cells come first."""
    cells = sorted(progress.settled(), key=lambda cell: (not cell.reachable, cell.verdict is not Outcome.VIOLATED))
    record = _record(directory, progress)
    return render_capped(
        "qualification.html", ((size.text, _values(directory, progress, record, cells, size)) for size in _SIZES)
    )


def _record(directory: Directory, progress: QualificationProgress) -> RunRecord | None:
    """That of the run without faults; None if it cannot be read."""
    run = str(progress.first)
    if not _RUN.fullmatch(run) or not _holds(directory, f"{run}/{RECORD}"):
        return None
    try:
        return RunRecord.read(directory.path / run)
    except OnceproofError:
        return None


def _values(
    directory: Directory, progress: QualificationProgress, record: RunRecord | None, cells: list[Cell], size: _Size
) -> dict[str, Any]:
    """What the template shows. ``record`` says which stores the job writes to: only advice for these is shown."""
    has_page = cache(lambda run: _holds(directory, f"{run}/{PAGE}"))  # cells share runs
    shown = tuple(
        _shown(number, cell, directory, progress.stack, record, has_page)
        for number, cell in enumerate(cells[: size.cells])
    )
    hidden = Counter((cell.query, cell.point, cell.column) for cell in cells[size.cells :] if cell.reachable)
    heats = tuple(_heats(shown, hidden))
    result = progress.result()
    counts = Counter(_result(cell)[0] for cell in cells)
    broken = Counter[str]()
    for cell in cells:
        if cell.verdict is Outcome.VIOLATED and cell.reachable:
            broken.update(dict.fromkeys(cell.anomalies, 1))
    unclaimed = [(run, dict(found), has_page(run)) for run, found in progress.unclaimed.items() if _RUN.fullmatch(run)]
    return {
        "title": f"qualification of {progress.scenario}: {result.value}",
        "name": progress.scenario,
        "outcome": result.value,
        "symbol": SYMBOLS[result],
        "lead": _lead(progress, counts),
        "counts": sorted(counts.items()),
        "claimed": some(_claimed(directory, progress), size.items),
        "held": None if progress.ended is None or progress.strongest is None else promises(progress.strongest),
        "left_behind": {str(point): words for point, words in LEFT_BEHIND.items()},
        "broken": some(broken.most_common(), size.items),
        "unclaimed": some(unclaimed, size.items),
        "first": next((one for one in shown if one.result == Outcome.VIOLATED.value), None),
        "heats": heats,
        "shown": [one for one in shown if one.cell.reachable],
        "absent": [one for one in shown if not one.cell.reachable],
        "hidden": hidden.total(),
        "elsewhere": hidden.total() - sum(heat.counted for heat in heats),
        "hidden_absent": len(cells) - len(shown) - hidden.total(),
        "items": size.items,
        "unfinished": progress.ended not in ("done",),
        "ended": progress.ended,
        "go_on": f"onceproof qualify --continue {shlex.quote(str(directory.path))}",
        "facts": (
            ("directory", str(directory.path)),
            ("scenario", progress.scenario_path),
            ("stack", progress.stack or "services of its own"),
            ("scenario, SHA-256", progress.digest),
            ("seed", str(progress.seed)),
            ("time", clock(progress.spent_s)),
            ("runs", str(progress.steps)),
            ("ended", progress.ended or "not yet"),
            ("run without faults", progress.first or "none"),
            ("faults of the scenario itself, not used", str(progress.replaced)),
        ),
        "report": PAGE,
    }


def _claimed(directory: Directory, progress: QualificationProgress) -> Iterator[str]:
    """The claim of the scenario and those of outputs with their own, as the verdict on the run without faults has them."""
    run = str(progress.first)
    if not _RUN.fullmatch(run) or not _holds(directory, f"{run}/{VERDICT_FILE}"):
        return
    try:
        verdict = Verdict.from_json(directory.path / run / VERDICT_FILE)
    except (OSError, ValueError, RecursionError):
        return
    yield from claims(verdict.claim)


def compared(old: Path, new: Path) -> Comparison:
    """Compare two qualifications cell by cell. Raises as `Directory.open`."""
    first, second = Directory.open(old)[1], Directory.open(new)[1]
    sides = [
        Side(str(path), progress.scenario, progress.result(), progress.result().value)
        for path, progress in ((old, first), (new, second))
    ]
    before, after = ({cell.name: cell for cell in progress.settled()} for progress in (first, second))
    rows = tuple(_row(name, before.get(name), after.get(name)) for name in dict.fromkeys((*after, *before)))
    cells = Section("cells", rows)
    cautions = []
    for which, progress in (("first", first), ("second", second)):
        if progress.unclaimed:
            runs = times(len(progress.unclaimed), "run")
            cautions.append(f"the {which} one has {runs} with a violation that no cell is known to have caused")
    if first.digest != second.digest:
        cautions.append("the scenario's file differs")
    if first.seed != second.seed:
        cautions.append(f"the seed differs: {first.seed} and {second.seed}")
    if None in (first.ended, second.ended) or "budget" in (first.ended, second.ended):
        cautions.append("not every cell was tried in both")
    return Comparison(sides[0], sides[1], statement(sides[0], sides[1], cells), (cells,), tuple(cautions))


def _row(name: str, old: Cell | None, new: Cell | None) -> Row:
    before, after = (None if cell is None else cell.word for cell in (old, new))
    return Row(name, before, after, trend(_badness(old), _badness(new)))


def _badness(cell: Cell | None) -> int | None:
    """From 0, held; None: the cell is missing, or does not apply. Without proof that it hit, a held cell shows nothing."""
    if cell is None or not cell.reachable:
        return None
    return 2 if cell.verdict is Outcome.VIOLATED else 0 if cell.verdict is Outcome.HELD and cell.exercised else 1


def _lead(progress: QualificationProgress, counts: Counter[str]) -> str:
    if not progress.cells:
        return "No fault was tried: the run without faults must hold first, or has not ended."
    reachable = sum(cell.reachable for cell in progress.cells)
    words = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()) if word != "n/a")
    only = f" Other kinds of faults than {', '.join(progress.kinds)} were not tried." if progress.kinds else ""
    return (
        f"{reachable} reachable cells: {words or 'none'}.{only} A cell says nothing about other points or other jobs."
    )


def _result(cell: Cell) -> tuple[str, str]:
    """What became of the cell, and the symbol of that."""
    if not cell.reachable:
        return "n/a", "\u2013"
    return ("undecided", "\u25cb") if cell.verdict is None else (cell.verdict.value, SYMBOLS[cell.verdict])


def _shown(
    number: int,
    cell: Cell,
    directory: Directory,
    stack: str | None,
    record: RunRecord | None,
    has_page: Callable[[str], bool],
) -> ShownCell:
    result, symbol = _result(cell)
    is_plain = _CELL.fullmatch(cell.name) and len(cell.name) <= _ANCHOR
    runs = tuple((run, has_page(run)) for run in cell.runs if _RUN.fullmatch(run))
    named = cell.reachable and _CELL.fullmatch(cell.name)
    is_there = named and _holds(directory, f"{directory.cells.name}/{cell.name}.yaml")
    command = directory.command_of(cell, stack) if is_there else None
    anchor = f"cell-{cell.name if is_plain else number}"
    return ShownCell(cell, anchor, result, symbol, cell.word, command, runs, tuple(dict.fromkeys(_fixes(cell, record))))


def _holds(directory: Directory, name: str) -> bool:
    """Whether the directory, which may come from anyone, holds this file. No link is followed."""
    path = directory.path
    for part in Path(name).parts:
        path /= part
        if path.is_symlink():
            return False
    return path.is_file()


def _fixes(cell: Cell, record: RunRecord | None) -> Iterator[str]:
    for name in cell.anomalies:
        yield from fixes.of_systems(name) if record is None else fixes.of_run(name, record)


def _heats(shown: tuple[ShownCell, ...], hidden: Counter[tuple[str | None, Point, str]]) -> Iterator[Heat]:
    """The matrices of the queries that are shown. ``hidden``: how many more cells there are, by query, point and column."""
    reachable = [one for one in shown if one.cell.reachable]
    order = [column for kind in kinds() for column in [one.cell.column for one in shown if one.cell.kind == kind]]
    others = [one.cell.column for one in shown]
    for query in dict.fromkeys(one.cell.query for one in reachable):
        of_query = [one for one in reachable if one.cell.query == query]
        columns = tuple(c for c in dict.fromkeys((*order, *others)) if any(one.cell.column == c for one in of_query))
        rows = []
        for point in Point:
            fields = tuple(
                Some(
                    tuple(one for one in of_query if one.cell.point is point and one.cell.column == column),
                    hidden[query, point, column],
                )
                for column in columns
            )
            if any(field.total for field in fields):
                rows.append((str(point), fields))
        yield Heat(query, columns, tuple(rows))
